#include "custom_ops/core/nccl/nccl_api.h"

#include "custom_ops/core/nccl/library.h"

namespace tfring {
namespace {

constexpr char kWayOut[] =
    ". Run `pip install --upgrade nvidia-nccl-cu12`, or set "
    "TFRING_NCCL_LIBRARY to the path of libnccl.so.2, or TFRING_GPU_DATA=host";

Status LookUp(const Library& library, NcclApi* nccl) {
#define TFR_REQUIRE(function) \
  TFR_RETURN_IF_ERROR(library.Require("nccl" #function, &nccl->function))
  TFR_REQUIRE(GetUniqueId);
  TFR_REQUIRE(CommInitRankConfig);
  TFR_REQUIRE(CommFinalize);
  TFR_REQUIRE(CommDestroy);
  TFR_REQUIRE(CommAbort);
  TFR_REQUIRE(CommGetAsyncError);
  TFR_REQUIRE(GetErrorString);
  TFR_REQUIRE(GroupStart);
  TFR_REQUIRE(GroupEnd);
  TFR_REQUIRE(AllReduce);
  TFR_REQUIRE(Reduce);
  TFR_REQUIRE(Broadcast);
  TFR_REQUIRE(AllGather);
  TFR_REQUIRE(ReduceScatter);
  TFR_REQUIRE(Send);
  TFR_REQUIRE(Recv);
#undef TFR_REQUIRE
  library.LookUp("ncclGetLastError", &nccl->GetLastError);
  library.LookUp("ncclRedOpCreatePreMulSum", &nccl->RedOpCreatePreMulSum);
  library.LookUp("ncclRedOpDestroy", &nccl->RedOpDestroy);
  return Status::Ok();
}

Status WithWayOut(const Status& status) {
  return FailedPrecondition(StrCat(status.message(), kWayOut));
}

}  // namespace

std::string NcclApi::VersionText(int version) {
  // Up to 2.8 the minor version had two digits less.
  const int scale = version < 10000 ? 1000 : 10000;
  return StrCat(version / scale, ".", version % scale / 100, ".",
                version % 100);
}

Status NcclApi::Load(const std::string& path, NcclApi* out) {
  Library library;
  const Status opened =
      Library::Open(path, {"libnccl.so.2", "libnccl.so"}, &library);
  if (!opened.ok()) {
    return FailedPrecondition(
        StrCat("NCCL cannot be loaded: ", opened.message(), kWayOut));
  }
  Status found = library.Require("ncclGetVersion", &out->GetVersion);
  if (!found.ok()) return WithWayOut(found);
  if (out->GetVersion(&out->version) != kNcclSuccess ||
      out->version < kOldest) {
    return FailedPrecondition(
        StrCat(library.name(), " is NCCL ", VersionText(out->version), ", but ",
               VersionText(kOldest), " or later is needed", kWayOut));
  }
  found = LookUp(library, out);
  return found.ok() ? found : WithWayOut(found);
}

}  // namespace tfring
