// SPDX-License-Identifier: Apache-2.0
#include "platform/ucx/library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "platform/os/fork.h"
#include "platform/ucx/environment.h"

namespace oh::ucx {
namespace {

constexpr char kSoname[] = "libucp.so.0";

// The file that contains a symbol, by its real path.
std::string file_of(const void* symbol) {
  Dl_info info{};
  if (!dladdr(symbol, &info) || !info.dli_fname) return {};
  std::unique_ptr<char, decltype(&free)> real(realpath(info.dli_fname, nullptr), &free);
  return real ? real.get() : info.dli_fname;
}

// The libucp of the wheel libucx-cu12 or -cu13, which is installed beside this package.
std::string file_of_wheel() {
  static const char ours = 0;
  std::string here = file_of(&ours);
  size_t slash = here.rfind('/');
  if (slash == std::string::npos) return {};
  return here.substr(0, slash) + "/../libucx/lib/" + kSoname;
}

const char* fill(Library& library) {
  const char* missing = nullptr;
#define OH_UCX_RESOLVE(name, symbol, result, parameters)        \
  library.name = reinterpret_cast<result(*) parameters>(        \
      reinterpret_cast<void*>(dlsym(library.handle, #symbol))); \
  if (!library.name && !missing) missing = #symbol;
  OH_UCX_FUNCTIONS(OH_UCX_RESOLVE)
#undef OH_UCX_RESOLVE
  return missing;
}

void* load(const std::string& name, int flags) {
  return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
}

// Why dlopen failed.
std::string reason() {
  const char* why = dlerror();
  return why ? why : "no reason given";
}

Status find(const std::string& wanted, Library& library) {
  // Prefer a library that is already loaded: other code in the process uses it.
  library.handle = load(kSoname, RTLD_NOLOAD);
  bool loaded = library.handle != nullptr;
  // Disable UCX's hooks into mmap() and similar calls. They serve RDMA registrations only, and some
  // builds take 0.4 s to install them.
  static char no_hooks[] = "UCX_MEM_MMAP_HOOK_MODE=none";
  std::optional<EnvironmentWith> without;
  if (!getenv("UCX_MEM_MMAP_HOOK_MODE") && !getenv("UCX_MEM_EVENTS") && !has_rdma()) {
    without.emplace(no_hooks);
  }
  if (!loaded && !wanted.empty()) {
    library.handle = load(wanted, 0);
    if (!library.handle) {
      return error(OH_ERR_NOT_VIABLE, "no UCX: dlopen(%s) of ONEHOP_UCX_LIBRARY failed: %s",
                   wanted.c_str(), reason().c_str());
    }
  }
  if (!library.handle) {
    std::string wheel = file_of_wheel();
    if (!wheel.empty()) library.handle = load(wheel, 0);
  }
  if (!library.handle) library.handle = load(kSoname, 0);
  if (!library.handle) {
    return error(OH_ERR_NOT_VIABLE,
                 "no UCX: dlopen(%s) failed: %s; pip install libucx-cu13, or install the system's "
                 "libucx 1.13 or newer, or name the file in ONEHOP_UCX_LIBRARY",
                 kSoname, reason().c_str());
  }
  const char* missing = fill(library);
  library.path = file_of(reinterpret_cast<const void*>(library.version));
  if (missing) {
    return error(OH_ERR_NOT_VIABLE, "UCX lacks %s in %s: 1.13 or newer is needed", missing,
                 library.path.c_str());
  }
  library.version(&library.major, &library.minor, &library.release);
  if (library.major != kApiMajor || library.minor < kApiMinor) {
    return error(OH_ERR_NOT_VIABLE, "UCX %s in %s is too old: 1.13 or newer is needed",
                 library.version_text().c_str(), library.path.c_str());
  }
  if (loaded && !wanted.empty()) {
    std::unique_ptr<char, decltype(&free)> real(realpath(wanted.c_str(), nullptr), &free);
    if (!real || library.path != real.get()) {
      return error(OH_ERR_NOT_VIABLE,
                   "ONEHOP_UCX_LIBRARY=%s cannot be used: this process has loaded %s before, and "
                   "two of them mix; unset the variable or let both name one file",
                   wanted.c_str(), library.path.c_str());
    }
  }
  // Disable UCX's handlers for SIGSEGV and other signals: the program decides about those.
  if (!loaded && !getenv("UCX_HANDLE_ERRORS") && !getenv("UCX_ERROR_SIGNALS")) {
    library.disable_signals();
  }
  return {};
}

}  // namespace

bool has_rdma() {
  DIR* folder = opendir("/sys/class/infiniband");
  if (!folder) return false;
  bool found = false;
  while (dirent* entry = readdir(folder)) found = found || entry->d_name[0] != '.';
  closedir(folder);
  return found;
}

bool is_rdma_transport(const char* name) {
  const std::string_view is = name ? name : "";
  return is.starts_with("rc_") || is.starts_with("dc_");
}

Result<const Library*> Library::open(const std::string& wanted) {
  struct Opened {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<Library>> by_name;
  };
  static ForkMark mark;
  if (wanted == "off") {
    return error(OH_ERR_NOT_VIABLE, "UCX is switched off (ONEHOP_UCX_LIBRARY=off)");
  }
  if (mark.is_of_parent()) {
    return error(OH_ERR_FORKED,
                 "UCX was opened, or was being opened, before fork(), and does not work in the "
                 "child: start the process by spawn or exec, or fork before the first endpoint");
  }
  Opened& opened = of_this_process([] { return new Opened; });
  std::lock_guard lock(opened.mutex);
  auto known = opened.by_name.find(wanted);
  if (known == opened.by_name.end()) {
    mark.set();
    auto library = std::make_unique<Library>();
    // On failure the handle stays: UCX cannot be unloaded once its constructors have run.
    if (Status status = find(wanted, *library); !status.ok()) {
      if (opened.by_name.empty()) mark.clear();
      return status;
    }
    known = opened.by_name.emplace(wanted, std::move(library)).first;
  }
  return const_cast<const Library*>(known->second.get());
}

Status Library::failure(Code code, const char* call, const std::string& details) const {
  oh_status status = OH_ERR_SYSTEM;
  switch (code) {
    case kNoMemory:
    case kNoResource:
      status = OH_ERR_NO_RESOURCE;
      break;
    case kUnreachable:
    case kUnsupported:
      status = OH_ERR_NOT_VIABLE;
      break;
    case kRejected:
    case kNotConnected:
    case kConnectionReset:
    case kEndpointTimeout:
      status = OH_ERR_PEER_LOST;
      break;
    default:
      break;
  }
  return error(status, "%s(%s) failed: %s (%d)", call, details.c_str(), status_string(code), code);
}

}  // namespace oh::ucx
