// Answers to questions about ranks.
#include "custom_ops/tensorflow/query.h"

#include "custom_ops/core/tfring.h"

namespace tfring {

int Ask(tfr_world* world, const Query& query, int32_t* answer,
        tfr_error* error) {
  int32_t size;
  int32_t rank;
  const int code =
      tfr_process_set_info(world, query.process_set, &size, &rank, error);
  if (code != TFR_OK) return code;
  tfr_info info;
  tfr_world_info(world, &info);
  switch (query.question) {
    case kSize:
      *answer = size;
      break;
    case kRank:
      *answer = rank;
      break;
    case kLocalSize:
      *answer = info.local_size;
      break;
    case kLocalRank:
      *answer = info.local_rank;
      break;
    default:
      *answer = rank >= 0 ? 1 : 0;
  }
  return TFR_OK;
}

}  // namespace tfring
