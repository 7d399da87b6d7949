// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/nvml.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "platform/os/fork.h"

namespace oh::cuda::nvml {
namespace {

// Resolves all entry points. Returns the name of the first missing one, or nullptr.
const char* fill(void* handle, Library& library) {
  const char* missing = nullptr;
#define OH_NVML_RESOLVE(name, symbol, parameters)                                            \
  library.name =                                                                             \
      reinterpret_cast<Code(*) parameters>(reinterpret_cast<void*>(dlsym(handle, #symbol))); \
  if (!library.name && !missing) missing = #symbol;
  OH_NVML_FUNCTIONS(OH_NVML_RESOLVE)
#undef OH_NVML_RESOLVE
  library.error_string = reinterpret_cast<const char* (*)(Code)>(dlsym(handle, "nvmlErrorString"));
  return library.error_string ? missing : "nvmlErrorString";
}

}  // namespace

oh::Result<const Library*> Library::open(const std::string& path) {
  struct Opened {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<Library>> by_name;
  };
  if (path == "off") {
    return error(OH_ERR_NOT_VIABLE, "NVML is switched off (ONEHOP_NVML_LIBRARY=off)");
  }
  const std::string name = path.empty() ? "libnvidia-ml.so.1" : path;
  Opened& opened = of_this_process([] { return new Opened; });
  std::lock_guard lock(opened.mutex);
  std::unique_ptr<Library>& known = opened.by_name[name];
  if (known) return const_cast<const Library*>(known.get());
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    return error(OH_ERR_NOT_VIABLE,
                 "no NVML: dlopen(%s) failed: %s; it comes with the driver (in a container: its "
                 "capability \"utility\"), or name it in ONEHOP_NVML_LIBRARY",
                 name.c_str(), why ? why : "no reason given");
  }
  auto library = std::make_unique<Library>();
  if (const char* missing = fill(handle, *library)) {
    dlclose(handle);
    return error(OH_ERR_NOT_VIABLE,
                 "%s lacks %s: install a newer driver, or name the right library in "
                 "ONEHOP_NVML_LIBRARY",
                 name.c_str(), missing);
  }
  known = std::move(library);
  return const_cast<const Library*>(known.get());
}

Status Library::failure(Code code, const char* call, const std::string& details) const {
  const char* words = error_string(code);
  return error(OH_ERR_NOT_VIABLE, "%s(%s) failed: %s (%d)", call, details.c_str(),
               words ? words : "no description", code);
}

Session::Session(const Library& library) : library_(library) {
  Code code = library.init();
  if (code != kSuccess) status_ = library.failure(code, "nvmlInit_v2", {});
}

Session::~Session() {
  if (status_.ok()) library_.shutdown();
}

}  // namespace oh::cuda::nvml
