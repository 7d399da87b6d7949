// SPDX-License-Identifier: Apache-2.0
#include "nccl_library.h"

#include <dlfcn.h>

#include <cstring>

namespace bench {

NcclLibrary::NcclLibrary(const std::vector<std::string>& libraries) {
  void* library = nullptr;
  std::string why;
  for (const std::string& name : libraries) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library) break;
    why = dlerror();
  }
  if (!library) throw GpuError("NCCL is not here: " + why);
  auto find = [&](const char* symbol, auto* function) {
    void* found = dlsym(library, symbol);
    if (!found) throw GpuError(std::string("this NCCL has no ") + symbol);
    std::memcpy(function, &found, sizeof(found));
  };
  find("ncclGetVersion", &get_version);
  find("ncclGetErrorString", &get_error);
  find("ncclGetUniqueId", &get_unique_id);
  find("ncclCommInitRank", &init_rank);
  find("ncclSend", &send);
  find("ncclRecv", &recv);
  find("ncclGroupStart", &group_start);
  find("ncclGroupEnd", &group_end);
  find("ncclCommDestroy", &destroy);
}

void NcclLibrary::check(int code, const char* call) const {
  if (code != 0) throw GpuError(std::string(call) + " failed: " + get_error(code));
}

std::string NcclLibrary::version() const {
  int version = 0;
  check(get_version(&version), "ncclGetVersion");
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace bench
