// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/driver.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "platform/os/fork.h"

namespace oh::cuda {
namespace {

struct Meaning {
  Code code;
  oh_status status;
  const char* remedy;
};

constexpr char kNewProcess[] =
    "the context is lost and every later call fails: find the kernel or access that did it "
    "(compute-sanitizer, CUDA_LAUNCH_BLOCKING=1) and start a new process";
constexpr char kCapture[] =
    "a stream is being captured into a graph: make the call before or after the capture";
constexpr char kMps[] = "check the MPS control daemon (nvidia-cuda-mps-control) and its limits";

// Status and remedy of each code, after cuda.h. OH_ERR_DEVICE: codes for which it says "to continue
// using CUDA, the process must be terminated and relaunched", and hardware errors.
constexpr Meaning kMeanings[] = {
    {kInvalidValue, OH_ERR_FAULT, "was the memory freed, or is it another process's?"},
    {kOutOfMemory, OH_ERR_NO_RESOURCE,
     "free device memory or reduce what others use (nvidia-smi shows it)"},
    {kNotInitialized, OH_ERR_NOT_VIABLE,
     "a process forked after CUDA was used cannot use it: start processes by spawn or exec"},
    {kDeinitialized, OH_ERR_CLOSED, "the process is ending: close endpoints before it does"},
    {34, OH_ERR_NOT_VIABLE,
     "this is the stub for linking: name the real driver in ONEHOP_CUDA_LIBRARY"},
    {36, OH_ERR_NOT_VIABLE, "install a newer driver"},
    {46, OH_ERR_NOT_VIABLE, "another process has the device for itself (nvidia-smi -q -d COMPUTE)"},
    {kNoDevice, OH_ERR_NOT_VIABLE,
     "check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the container was given GPUs"},
    {kInvalidDevice, OH_ERR_INVALID, "the devices seem not to fit: check CUDA_VISIBLE_DEVICES"},
    {kInvalidContext, OH_ERR_INVALID,
     "not with this context: memory of this very process cannot be imported, and a device that was "
     "reset (cudaDeviceReset) needs a new endpoint"},
    {kMapFailed, OH_ERR_NOT_VIABLE,
     "the memory cannot be mapped here: are both processes in one IPC and GPU environment?"},
    {214, OH_ERR_DEVICE, "uncorrectable memory error: see nvidia-smi -q and reset the GPU"},
    {kPeerAccessUnsupported, OH_ERR_NOT_VIABLE,
     "these GPUs cannot reach each other's memory (nvidia-smi topo -p2p r)"},
    {220, OH_ERR_DEVICE, "uncorrectable NVLink error: see nvidia-smi nvlink -e; new process"},
    {226, OH_ERR_DEVICE, kNewProcess},
    {304, OH_ERR_SYSTEM, "the kernel's log (dmesg) may say more"},
    {kInvalidHandle, OH_ERR_INVALID,
     "a stream or event that was destroyed, or that belongs to another device"},
    {kIllegalAddress, OH_ERR_DEVICE, kNewProcess},
    {702, OH_ERR_DEVICE, kNewProcess},
    {kContextIsDestroyed, OH_ERR_CLOSED,
     "the device was reset (cudaDeviceReset) while an endpoint used it: create a new endpoint"},
    {710, OH_ERR_DEVICE, kNewProcess},
    {711, OH_ERR_NOT_VIABLE, "the hardware allows no more peers of this GPU"},
    {kHostMemoryAlreadyRegistered, OH_ERR_INVALID, "it was registered by other code"},
    {kHostMemoryNotRegistered, OH_ERR_INVALID, "it was unregistered by other code"},
    {714, OH_ERR_DEVICE, kNewProcess},
    {715, OH_ERR_DEVICE, kNewProcess},
    {716, OH_ERR_DEVICE, kNewProcess},
    {717, OH_ERR_DEVICE, kNewProcess},
    {718, OH_ERR_DEVICE, kNewProcess},
    {kLaunchFailed, OH_ERR_DEVICE, kNewProcess},
    {721, OH_ERR_DEVICE, kNewProcess},
    {kNotPermitted, OH_ERR_NOT_VIABLE,
     "the driver or the container forbids it; fabric handles need an IMEX channel"},
    {kNotSupported, OH_ERR_NOT_VIABLE, "not on this system or device"},
    {802, OH_ERR_NOT_VIABLE, "are all daemons up (nvidia-fabricmanager on NVSwitch machines)?"},
    {803, OH_ERR_NOT_VIABLE, "kernel module and libcuda differ: reboot or reinstall the driver"},
    {804, OH_ERR_NOT_VIABLE, "remove the forward-compatibility package"},
    {805, OH_ERR_NOT_VIABLE, kMps},
    {806, OH_ERR_NOT_VIABLE, kMps},
    {807, OH_ERR_NOT_VIABLE, kMps},
    {808, OH_ERR_NO_RESOURCE, kMps},
    {809, OH_ERR_NO_RESOURCE, kMps},
    {810, OH_ERR_DEVICE, "the MPS server ended this client: start a new process"},
    {kStreamCaptureUnsupported, OH_ERR_INVALID, kCapture},
    {901, OH_ERR_INVALID, kCapture},
    {905, OH_ERR_INVALID, kCapture},
    {kStreamCaptureImplicit, OH_ERR_INVALID, kCapture},
    {907, OH_ERR_INVALID, kCapture},
    {911, OH_ERR_DEVICE, kNewProcess},
};

const Meaning* meaning(Code code) {
  for (const Meaning& entry : kMeanings) {
    if (entry.code == code) return &entry;
  }
  return nullptr;
}

std::string version_text(int version) {
  return version > 0 ? strf("CUDA %d.%d", version / 1000, version % 1000 / 10)
                     : std::string("an unknown version of CUDA");
}

// Resolves all entry points. Returns the name of the first missing one, or nullptr.
const char* fill(Driver& driver) {
  const char* missing = nullptr;
#define OH_CUDA_RESOLVE(name, symbol, parameters)     \
  driver.name = reinterpret_cast<Code(*) parameters>( \
      reinterpret_cast<void*>(dlsym(driver.handle, #symbol)));
#define OH_CUDA_NEED(name, symbol, parameters) \
  OH_CUDA_RESOLVE(name, symbol, parameters)    \
  if (!driver.name && !missing) missing = #symbol;
  OH_CUDA_FUNCTIONS(OH_CUDA_NEED)
  OH_CUDA_NEWER_FUNCTIONS(OH_CUDA_RESOLVE)
#undef OH_CUDA_NEED
#undef OH_CUDA_RESOLVE
  return missing;
}

Status load(const std::string& name, Driver& driver) {
  driver.library = name;
  driver.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!driver.handle) {
    const char* why = dlerror();
    return error(OH_ERR_NOT_VIABLE,
                 "no CUDA driver: dlopen(%s) failed: %s; install it (in a container: start it "
                 "with GPUs) or name it in ONEHOP_CUDA_LIBRARY",
                 name.c_str(), why ? why : "no reason given");
  }
  if (const char* missing = fill(driver)) {
    int version = 0;
    bool known = driver.driver_version && driver.driver_version(&version) == kSuccess;
    Status status = error(OH_ERR_NOT_VIABLE,
                          "the CUDA driver %s lacks %s; it speaks %s: install a newer driver, or "
                          "name the right library in ONEHOP_CUDA_LIBRARY",
                          name.c_str(), missing, version_text(known ? version : 0).c_str());
    dlclose(driver.handle);
    return status;
  }
  return {};
}

// Any error during initialization means that no driver is usable.
Status not_viable(const Status& status) {
  return status.ok() ? Status() : Status(OH_ERR_NOT_VIABLE, status.text());
}

Status initialise(Driver& driver) {
  Code code = driver.init(0);
  if (code != kSuccess) return not_viable(driver.failure(code, symbol::init, driver.library));
  code = driver.driver_version(&driver.version);
  if (code != kSuccess) return not_viable(driver.failure(code, symbol::driver_version, {}));
  int count = 0;
  code = driver.device_count(&count);
  if (code == kSuccess && count == 0) code = kNoDevice;
  if (code != kSuccess) return not_viable(driver.failure(code, symbol::device_count, {}));
  return {};
}

Status forked(const std::string& name) {
  return error(
      OH_ERR_FORKED,
      "the CUDA driver was opened, or was being opened, before fork(), and %s does not work "
      "in the child: start the process by spawn or exec, or fork before the first "
      "endpoint",
      name.c_str());
}

}  // namespace

bool is_sticky(Code code) {
  const Meaning* known = meaning(code);
  return known && known->status == OH_ERR_DEVICE;
}

Result<const Driver*> Driver::open(const std::string& path) {
  struct Opened {
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<Driver>> by_name;
  };
  static ForkMark mark;
  if (path == "off") {
    return error(OH_ERR_NOT_VIABLE, "CUDA is switched off (ONEHOP_CUDA_LIBRARY=off)");
  }
  const std::string name = path.empty() ? "libcuda.so.1" : path;
  if (mark.is_of_parent()) return forked(name);
  Opened& opened = of_this_process([] { return new Opened; });
  std::lock_guard lock(opened.mutex);
  auto known = opened.by_name.find(name);
  if (known != opened.by_name.end()) return const_cast<const Driver*>(known->second.get());
  mark.set();
  auto driver = std::make_unique<Driver>();
  driver->generation = fork_generation();
  Status status = load(name, *driver);
  if (status.ok()) status = initialise(*driver);
  if (!status.ok()) {
    if (opened.by_name.empty()) mark.clear();
    return status;
  }
  return const_cast<const Driver*>(
      opened.by_name.emplace(name, std::move(driver)).first->second.get());
}

Status Driver::usable() const {
  return generation == fork_generation() ? Status() : forked(library);
}

Status Driver::failure(Code code, const char* call, const std::string& details) const {
  const char* name = nullptr;
  const char* words = nullptr;
  if (error_name(code, &name) != kSuccess || !name) name = "an unknown error";
  if (error_string(code, &words) != kSuccess || !words) words = "no description";
  const Meaning* known = meaning(code);
  std::string text = strf("%s(%s) failed: %s (%d): %s", call, details.c_str(), name, code, words);
  if (known) text += strf("; %s", known->remedy);
  return Status(known ? known->status : OH_ERR_SYSTEM, std::move(text));
}

}  // namespace oh::cuda
