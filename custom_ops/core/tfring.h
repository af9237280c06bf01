// The whole face of the tfring engine, in C.
//
// The engine moves tensors between the ranks of one job. It knows neither
// TensorFlow nor Python; both reach it through this header only.
//
//   store    a small authenticated key-value server where ranks first meet
//   world    one job seen from one rank: identity, connections, engine thread
//   request  one collective: what every rank must describe alike
//
// Every function that can fail returns a `tfr_code` and writes the reason into
// the caller's `tfr_error`, which may be NULL. No exception crosses this face.
// All functions may be called from any thread unless they say otherwise.
#ifndef TFRING_CORE_TFRING_H_
#define TFRING_CORE_TFRING_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFR_API __attribute__((visibility("default")))

// Numbers are those of the canonical status codes, so adapters can cast.
// Usage errors (the engine stays usable): INVALID_ARGUMENT,
// FAILED_PRECONDITION. Communication errors (the world is broken for good):
// UNAVAILABLE.
typedef enum tfr_code {
  TFR_OK = 0,
  TFR_CANCELLED = 1,
  TFR_INVALID_ARGUMENT = 3,
  TFR_DEADLINE_EXCEEDED = 4,
  TFR_NOT_FOUND = 5,
  TFR_RESOURCE_EXHAUSTED = 8,
  TFR_FAILED_PRECONDITION = 9,
  TFR_INTERNAL = 13,
  TFR_UNAVAILABLE = 14,
} tfr_code;

#define TFR_ERROR_TEXT 4096
typedef struct tfr_error {
  int32_t code;
  char text[TFR_ERROR_TEXT];
} tfr_error;

// Numbers are those of TF_DataType, so adapters can cast.
typedef enum tfr_dtype {
  TFR_FLOAT32 = 1,
  TFR_FLOAT64 = 2,
  TFR_INT32 = 3,
  TFR_UINT8 = 4,
  TFR_INT16 = 5,
  TFR_INT8 = 6,
  TFR_INT64 = 9,
  TFR_BOOL = 10,
  TFR_BFLOAT16 = 14,
  TFR_UINT16 = 17,
  TFR_FLOAT16 = 19,
} tfr_dtype;
// Bytes of one element; 0 for a number that is not a tfr_dtype.
TFR_API uint64_t tfr_dtype_size(int32_t dtype);

// Numbers are Horovod's.
typedef enum tfr_reduce_op {
  TFR_AVERAGE = 0,
  TFR_SUM = 1,
  TFR_ADASUM = 2,  // allreduce of floats on 2^k ranks; see collectives/adasum.h
  TFR_MIN = 3,
  TFR_MAX = 4,
  TFR_PRODUCT = 5,
} tfr_reduce_op;

typedef enum tfr_kind {
  TFR_ALLREDUCE = 1,
  TFR_ALLGATHER = 2,
  TFR_BROADCAST = 3,
  TFR_BARRIER = 4,
  TFR_REDUCESCATTER = 5,  // op Sum or Average
  TFR_ALLTOALL = 6,
  TFR_JOIN = 7,  // no more contributions until all ranks have joined
  // Have functions of their own; in a request only with a `fault`.
  TFR_ADD_PROCESS_SET = 101,
  TFR_REMOVE_PROCESS_SET = 102,
} tfr_kind;

// How much of a submitted request the calling thread may do by itself. It saves
// hand-overs between threads where collectives are small.
typedef enum tfr_patience {
  TFR_HAND_OVER = 0,  // nothing: tfr_submit returns at once
  // A small collective, if the other ranks come within the short spin that
  // precedes any sleep.
  TFR_LOOK = 1,
  // One of up to some MiB, if the other ranks come within about a millisecond:
  // for callers that have nothing else to do.
  TFR_LINGER = 2,
} tfr_patience;

TFR_API const char* tfr_version(void);
// Multi-line text: compiler, instruction sets in use, transports.
TFR_API const char* tfr_build_info(void);

// --- store -----------------------------------------------------------------

typedef struct tfr_store_server tfr_store_server;
typedef struct tfr_store_client tfr_store_client;
typedef struct tfr_bytes {
  uint8_t* data;  // owned by the caller; free with tfr_bytes_free
  uint64_t size;
} tfr_bytes;

// Serves a store on `host` ("" = every interface), `port` 0 = any free one;
// `*port_out` is the port it listens on. A client must prove `secret` (any
// non-empty text) by an HMAC-SHA256 challenge before a byte of it is parsed.
TFR_API int tfr_store_serve(const char* host, int32_t port, const char* secret,
                            tfr_store_server** out, int32_t* port_out,
                            tfr_error* error);
// Ends all clients' connections and the server's thread.
TFR_API void tfr_store_server_close(tfr_store_server* server);

// `address` is "host:port" ("[v6]:port").
TFR_API int tfr_store_connect(const char* address, const char* secret,
                              double timeout_s, tfr_store_client** out,
                              tfr_error* error);
TFR_API void tfr_store_client_close(tfr_store_client* client);
TFR_API int tfr_store_set(tfr_store_client* client, const char* key,
                          const uint8_t* data, uint64_t size, tfr_error* error);
// Sets only if the key is absent; `*was_set` says whether this call set it.
TFR_API int tfr_store_set_once(tfr_store_client* client, const char* key,
                               const uint8_t* data, uint64_t size,
                               int32_t* was_set, tfr_error* error);
// Waits until the key exists, at most timeout_s; DEADLINE_EXCEEDED names it.
// timeout_s 0 asks once (NOT_FOUND when absent).
TFR_API int tfr_store_get(tfr_store_client* client, const char* key,
                          double timeout_s, tfr_bytes* out, tfr_error* error);
TFR_API void tfr_bytes_free(tfr_bytes* bytes);

// --- world -----------------------------------------------------------------

typedef struct tfr_world tfr_world;

// How hosts add up; see collectives/host_algorithm.h.
typedef enum tfr_host_algorithm {
  TFR_HOSTS_AUTO = 0,  // by size and number of hosts
  TFR_HOSTS_DIRECT = 1,
  TFR_HOSTS_HALVING_DOUBLING = 2,
  TFR_HOSTS_RING = 3,
} tfr_host_algorithm;

// How tensors in the memory of GPUs travel.
typedef enum tfr_gpu_data {
  TFR_GPU_AUTO = 0,    // by NCCL where all ranks can, else as TFR_GPU_STAGED
  TFR_GPU_NCCL = 1,    // by NCCL, or fail
  TFR_GPU_STAGED = 2,  // through host memory, then as CPU tensors do
} tfr_gpu_data;

typedef struct tfr_config {
  int32_t rank;
  int32_t size;
  const char* host;        // ranks with equal host share memory; NULL = detect
  const char* store;       // "host:port"; may be NULL when size is 1
  const char* secret;      // shared by all ranks; may be NULL when size is 1
  const char* session;     // prefix of this init's keys; equal on all ranks
  const char* interfaces;  // comma list of NICs to listen on; NULL = any
  const char* faults;      // test seam, see docs/internals.md; NULL = none
  double start_timeout_s;
  double warn_after_s;    // a stalled collective is reported after this
  double fail_after_s;    // ... and fails after this; 0 = never
  uint64_t chunk_bytes;   // staging chunk; 0 = chosen by the engine
  int32_t shared_memory;  // 0: TCP also inside a host
  int32_t spin_us;        // spin this long before sleeping; -1 = chosen
  // Rank 0's word counts for all.
  int32_t host_connections;  // per pair of hosts; 0 = chosen
  int32_t host_leaders;      // ranks of each host that exchange; 0 = chosen
  int32_t host_algorithm;    // tfr_host_algorithm
  int32_t depth;             // staging chunks of each rank; 0 = chosen
  int32_t copy_threads;  // that move data, the engine's included; 0 = chosen
  int64_t direct_bytes;  // inside a host, every rank reduces all of up to this
                         // many bytes, its share of more; -1 = chosen
  // GPUs: see core/nccl/device_plane.h. Libraries are loaded when the first
  // tensor in a GPU's memory comes; NULL: found by name.
  const char* cudart_library;
  const char* nccl_library;
  int32_t gpu_data;  // tfr_gpu_data
  // Between hosts, allreduce travels as CPU tensors do, NCCL adds up inside;
  // other collectives go through host memory.
  int32_t gpu_hosts_by_tcp;
} tfr_config;

typedef struct tfr_info {
  int32_t rank, size;
  int32_t local_rank, local_size;  // among the ranks of this host
  int32_t cross_rank, cross_size;  // among the hosts that hold local_rank
  int32_t host_count;
  int32_t homogeneous;  // every host holds equally many ranks
} tfr_info;

typedef struct tfr_stats {
  uint64_t collectives;       // finished on this rank
  uint64_t tensors;           // that they carried
  uint64_t control_messages;  // sent by this rank after init
  uint64_t payload_bytes;     // bytes of input tensors
  // The same as they travel between ranks: fewer with a wire_dtype.
  uint64_t travel_bytes;
  uint64_t wire_bytes_sent;  // data bytes that this rank wrote to sockets
  uint64_t staging_bytes;    // memory the engine holds now for data
  uint64_t staging_bytes_peak;
  // This rank had collectives pending, and none could run since others had not
  // submitted them: its wall time, however many waited at the same time.
  uint64_t wait_ns;
  uint64_t transfer_ns;  // moving and reducing data, on a GPU, too
  // All ranks had it, but other collectives ran first or the engine had yet to
  // wake; added up over collectives.
  uint64_t queue_ns;
} tfr_stats;

// One collective as this rank saw it; times are CLOCK_MONOTONIC.
#define TFR_RECORD_NAME 128
typedef struct tfr_record {
  char name[TFR_RECORD_NAME];  // cut, if need be
  int64_t submitted_ns;        // by this rank
  int64_t agreed_ns;           // all ranks had it
  int64_t began_ns, ended_ns;
  uint64_t bytes;         // of input tensors
  uint64_t travel_bytes;  // the same as they travel between ranks
  uint64_t group;  // 0: all ranks; each process set has a number of its own
  int32_t kind;    // tfr_kind
  int32_t tensors;
  int32_t last_rank;  // submitted it last; the others waited for it
  int32_t reserved;
} tfr_record;

// Meets the other ranks and starts the engine. Blocks until all `size` ranks
// are connected, at most start_timeout_s; the error lists the ranks missing.
TFR_API int tfr_world_create(const tfr_config* config, tfr_world** out,
                             tfr_error* error);
TFR_API void tfr_world_info(const tfr_world* world, tfr_info* info);
// `hosts[r]` = index of rank r's host, in order of each host's lowest rank.
TFR_API void tfr_world_hosts(const tfr_world* world, int32_t* hosts);
TFR_API void tfr_world_stats(const tfr_world* world, tfr_stats* stats);
// `ns[r]` = how much of wait_ns this rank waited for rank r, in all process
// sets. Between hosts, what it takes to hear of it is part of the wait.
TFR_API void tfr_world_waits(const tfr_world* world, uint64_t* ns);
// Keeps records of the newest `capacity` collectives from now on; 0: none.
// RESOURCE_EXHAUSTED: no memory for them.
TFR_API int tfr_world_record(tfr_world* world, uint64_t capacity,
                             tfr_error* error);
// Takes up to `capacity` records, in the order finished; returns how many.
// `*lost` = how many have been dropped since the last call, for want of room.
TFR_API uint64_t tfr_world_records(tfr_world* world, tfr_record* records,
                                   uint64_t capacity, uint64_t* lost);
// Ends the world for every rank: their collectives fail with `text`, which is
// said to come from this rank. The first error of a world wins.
TFR_API void tfr_world_abort(tfr_world* world, const char* text);
// Leaves the world and frees it. Pending collectives fail here; those of
// other ranks that still need this rank fail there, naming it. Never blocks
// longer than a few seconds. No other call on `world` may be running.
TFR_API void tfr_world_shutdown(tfr_world* world);
// To be called in a forked child: closes inherited descriptors, tells nobody.
// The handle is leaked in the child and must not be used there again.
TFR_API void tfr_world_after_fork(tfr_world* world);

// --- process sets ----------------------------------------------------------

// A process set is a group of ranks with collectives of its own, which run at
// the same time as those of other sets. Set 0 is the whole world. Ids of
// removed sets are used again, the one removed first first. So requests name
// sets by handles: the low 32 bits are the id, the high ones count the sets
// that had it before. A removed set's handle never means another set.

// Makes a set; a collective of the whole world: every rank must call it with
// the same ranks, in the same order among its calls of add and remove. `ranks`
// are ascending and without repetition, else INVALID_ARGUMENT, as for a rank
// that the world does not have and for a set that exists already; that of one
// rank alone reaches all others, too. Ranks that call it with different lists
// get FAILED_PRECONDITION.
TFR_API int tfr_process_set_add(tfr_world* world, const int32_t* ranks,
                                int32_t count, int64_t* handle,
                                tfr_error* error);
// Removes a set; a collective of the whole world. INVALID_ARGUMENT for set 0
// and unknown handles; FAILED_PRECONDITION, on every rank, when ranks name
// different sets or a member has collectives of the set pending.
TFR_API int tfr_process_set_remove(tfr_world* world, int64_t handle,
                                   tfr_error* error);
// `*size` = number of ranks of the set, `*rank` = this rank's place among them
// or -1. INVALID_ARGUMENT: no such set.
TFR_API int tfr_process_set_info(const tfr_world* world, int64_t handle,
                                 int32_t* size, int32_t* rank,
                                 tfr_error* error);

// --- collectives -----------------------------------------------------------

typedef struct tfr_tensor {
  const void* input;    // read until done; may be NULL for a non-root broadcast
  void* output;         // may equal input where shapes are equal; NULL asks
                        // allocate() (allgather, reducescatter, alltoall)
  const int64_t* dims;  // of the input; copied
  int32_t ndims;        // 0 = scalar
  int32_t dtype;        // tfr_dtype
} tfr_tensor;

// Asked once per tensor whose output is NULL, from the thread that runs the
// collective, when the size is known: `rows` is the output's first dimension
// (allgather, reducescatter, alltoall). Returns the buffer; NULL fails the
// collective with RESOURCE_EXHAUSTED. A buffer of zero bytes is never written;
// any non-NULL pointer will do.
typedef void* (*tfr_allocate)(void* user, int32_t tensor, int64_t rows);
// Called exactly once for an accepted request. `error->code` is TFR_OK on
// success. Must not block and must not call tfr_run.
typedef void (*tfr_done)(void* user, const tfr_error* error);

typedef struct tfr_request {
  const char* name;           // same on all ranks; n-th use pairs with n-th use
  int32_t kind;               // tfr_kind
  int32_t reduce_op;          // tfr_reduce_op (allreduce, reducescatter)
  int32_t root;               // global rank (broadcast)
  int32_t tensor_count;       // dtypes may differ inside one request
  const tfr_tensor* tensors;  // copied
  int64_t process_set;        // handle of the ranks that take part; 0 = all
  double prescale;            // each input times this before the reduction
  double postscale;           // the result times this; both in at least float32
  // alltoall: rows of each tensor for each rank of the set, [tensor][rank];
  // copied. NULL: equal parts.
  const int64_t* splits;
  // Written before `done`; NULL if not wanted. alltoall: rows that came from
  // each rank, [tensor][rank]. join: [0] = the rank that joined last.
  int64_t* counts;
  // Not NULL: this rank's arguments are wrong, and this says how. The request
  // is announced in the place of the right one, so that every rank's call fails
  // with INVALID_ARGUMENT instead of waiting; tensors are ignored.
  const char* fault;
  tfr_allocate allocate;
  tfr_done done;  // ignored by tfr_run
  void* user;
  // allreduce but for Adasum: TFR_FLOAT16, TFR_BFLOAT16, or 0 for the tensors'
  // own. Floating tensors that are wider travel in it: inputs are rounded once,
  // after `prescale`, and reduced in float32.
  int32_t wire_dtype;
  int32_t patience;  // tfr_patience; of tfr_submit
  // 0: inputs and outputs are in host memory. n > 0: all are in the memory of
  // CUDA device n - 1; same kind of memory on all ranks. Then `stream` is the
  // CUDA stream (cudaStream_t; NULL: the default one) behind whose work, as it
  // is now, inputs are ready and outputs may be written; `done` is called when
  // the results are there for whatever is launched afterwards.
  int32_t device;
  void* stream;
} tfr_request;

// Hands the request to the engine and returns at once, or a little later if
// `patience` says so. On TFR_OK `done` will be called, perhaps before this
// returns and then mostly on this thread. On error it is not. Arguments that
// are wrong by themselves (splits, root, a scalar to gather) are announced as a
// `fault`, so `done` brings the error, here and on the peers. INVALID_ARGUMENT
// at once: no such process set, or this rank is not a member.
TFR_API int tfr_submit(tfr_world* world, const tfr_request* request,
                       tfr_error* error);
// Runs the request on the calling thread and returns when it is done here.
TFR_API int tfr_run(tfr_world* world, const tfr_request* request,
                    tfr_error* error);

// --- memory of GPUs ----------------------------------------------------------

// For callers that have pointers into it but no CUDA of their own. The CUDA
// run-time library is the world's cudart_library; `world` NULL: the one in this
// process, or found by name. FAILED_PRECONDITION: it cannot be loaded.

// The CUDA device in whose memory `memory` is, as in a request's `device`,
// whichever device the calling thread uses. INVALID_ARGUMENT: it is in no
// GPU's.
TFR_API int tfr_device_of(tfr_world* world, const void* memory, int32_t* device,
                          tfr_error* error);
// Copies from or to a GPU behind what is in `stream` now, and waits for that.
TFR_API int tfr_device_copy(tfr_world* world, void* to, const void* from,
                            uint64_t bytes, void* stream, tfr_error* error);
// RESOURCE_EXHAUSTED: no memory is left there.
TFR_API int tfr_device_allocate(tfr_world* world, int32_t device,
                                uint64_t bytes, void** memory,
                                tfr_error* error);
TFR_API void tfr_device_free(tfr_world* world, void* memory);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TFRING_CORE_TFRING_H_
