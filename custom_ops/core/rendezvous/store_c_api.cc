// The store's part of tfring.h.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/rendezvous/store_client.h"
#include "custom_ops/core/rendezvous/store_server.h"
#include "custom_ops/core/tfring.h"

struct tfr_store_server {
  std::unique_ptr<tfring::StoreServer> server;
};

struct tfr_store_client {
  std::unique_ptr<tfring::StoreClient> client;
};

namespace tfring {
namespace {

// Runs `body`; what it throws (memory that ran out) becomes a status.
template <typename Body>
int Guarded(tfr_error* error, Body body) {
  try {
    return Export(body(), error);
  } catch (const std::bad_alloc&) {
    return Export(ResourceExhausted("out of memory"), error);
  } catch (const std::exception& exception) {
    return Export(Internal(exception.what()), error);
  }
}

Status RequirePointer(const void* pointer, const char* name) {
  if (pointer != nullptr) return Status::Ok();
  return InvalidArgument(
      StrCat("`", name, "` must not be NULL. Received: ", name, "=NULL"));
}

Status CheckWrite(const tfr_store_client* client, const char* key,
                  const uint8_t* data, uint64_t size) {
  TFR_RETURN_IF_ERROR(RequirePointer(client, "client"));
  TFR_RETURN_IF_ERROR(RequirePointer(key, "key"));
  return size == 0 ? Status::Ok() : RequirePointer(data, "data");
}

// At least one byte, so that `data` is never NULL.
Status CopyOut(const std::string& value, tfr_bytes* out) {
  auto* data = static_cast<uint8_t*>(std::malloc(value.size() + 1));
  if (data == nullptr) return ResourceExhausted("out of memory");
  std::memcpy(data, value.data(), value.size());
  out->data = data;
  out->size = value.size();
  return Status::Ok();
}

Status Serve(const char* host, int32_t port, const char* secret,
             tfr_store_server** out, int32_t* port_out) {
  TFR_RETURN_IF_ERROR(RequirePointer(secret, "secret"));
  TFR_RETURN_IF_ERROR(RequirePointer(out, "out"));
  StoreServerOptions options;
  options.host = host == nullptr ? "" : host;
  options.port = port;
  options.secret = secret;
  auto handle = std::make_unique<tfr_store_server>();
  TFR_RETURN_IF_ERROR(StoreServer::Start(options, &handle->server));
  if (port_out != nullptr) *port_out = handle->server->port();
  *out = handle.release();
  return Status::Ok();
}

Status Connect(const char* address, const char* secret, double timeout_s,
               tfr_store_client** out) {
  TFR_RETURN_IF_ERROR(RequirePointer(address, "address"));
  TFR_RETURN_IF_ERROR(RequirePointer(secret, "secret"));
  TFR_RETURN_IF_ERROR(RequirePointer(out, "out"));
  auto handle = std::make_unique<tfr_store_client>();
  TFR_RETURN_IF_ERROR(
      StoreClient::Connect(address, secret, timeout_s, &handle->client));
  *out = handle.release();
  return Status::Ok();
}

}  // namespace
}  // namespace tfring

extern "C" {

int tfr_store_serve(const char* host, int32_t port, const char* secret,
                    tfr_store_server** out, int32_t* port_out,
                    tfr_error* error) {
  return tfring::Guarded(
      error, [&] { return tfring::Serve(host, port, secret, out, port_out); });
}

void tfr_store_server_close(tfr_store_server* server) { delete server; }

int tfr_store_connect(const char* address, const char* secret, double timeout_s,
                      tfr_store_client** out, tfr_error* error) {
  return tfring::Guarded(
      error, [&] { return tfring::Connect(address, secret, timeout_s, out); });
}

void tfr_store_client_close(tfr_store_client* client) { delete client; }

int tfr_store_set(tfr_store_client* client, const char* key,
                  const uint8_t* data, uint64_t size, tfr_error* error) {
  return tfring::Guarded(error, [&]() -> tfring::Status {
    TFR_RETURN_IF_ERROR(tfring::CheckWrite(client, key, data, size));
    return client->client->Set(key, data, size);
  });
}

int tfr_store_set_once(tfr_store_client* client, const char* key,
                       const uint8_t* data, uint64_t size, int32_t* was_set,
                       tfr_error* error) {
  return tfring::Guarded(error, [&]() -> tfring::Status {
    TFR_RETURN_IF_ERROR(tfring::CheckWrite(client, key, data, size));
    bool set = false;
    TFR_RETURN_IF_ERROR(client->client->SetOnce(key, data, size, &set));
    if (was_set != nullptr) *was_set = set ? 1 : 0;
    return tfring::Status::Ok();
  });
}

int tfr_store_get(tfr_store_client* client, const char* key, double timeout_s,
                  tfr_bytes* out, tfr_error* error) {
  return tfring::Guarded(error, [&]() -> tfring::Status {
    TFR_RETURN_IF_ERROR(tfring::RequirePointer(client, "client"));
    TFR_RETURN_IF_ERROR(tfring::RequirePointer(key, "key"));
    TFR_RETURN_IF_ERROR(tfring::RequirePointer(out, "out"));
    std::string value;
    TFR_RETURN_IF_ERROR(client->client->Get(key, timeout_s, &value));
    return tfring::CopyOut(value, out);
  });
}

void tfr_bytes_free(tfr_bytes* bytes) {
  if (bytes == nullptr) return;
  std::free(bytes->data);
  bytes->data = nullptr;
  bytes->size = 0;
}

}  // extern "C"
