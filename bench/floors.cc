// SPDX-License-Identifier: Apache-2.0
#include "yardsticks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "kernels.h"
#include "loops.h"
#include "streams.h"

namespace bench {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// What each side sends to the other about its memory. Not every floor uses all of it.
struct Hello {
  pid_t process;
  int ordinal;
  cuda::Context context;
  cuda::DevicePtr address;
  cuda::IpcHandle handle;
};

Hello swap_hello(Link& link, const Hello& mine) {
  Bytes bytes(sizeof(mine));
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  bytes = link.swap(bytes);
  Hello theirs{};
  if (bytes.size() != sizeof(theirs)) throw std::runtime_error("the other side's hello is cut off");
  std::memcpy(&theirs, bytes.data(), sizeof(theirs));
  return theirs;
}

// ---- Host memory

class Flag : public SlotWire {
 public:
  Flag(Meeting& meeting, const Spec& spec) : SlotWire(meeting), meeting_(meeting) {
    if (spec.size != sizeof(uint64_t)) throw std::invalid_argument("a flag has 8 bytes");
    give_and_take(spec, [&] { return std::make_unique<Buffer>(spec.size); });
  }
  void send(uint64_t) override {
    uint64_t value = 0;
    std::memcpy(&value, from_->place(0), sizeof(value));
    meeting_.tell(value);
  }
  void recv(uint64_t) override {
    const uint64_t value = meeting_.await();
    std::memcpy(to_->place(0), &value, sizeof(value));
  }

 private:
  Meeting& meeting_;
};

class ReadOther : public SlotWire {
 public:
  ReadOther(Meeting& meeting, const Spec& spec) : SlotWire(meeting), size_(spec.size) {
    give_and_take(spec, [&] { return std::make_unique<Buffer>(spec.size); });
    const Hello hello{getpid(), 0, nullptr, address_of(memory().place()), {}};
    // Yama allows access only by ancestors, or by the process named here.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    other_ = swap_hello(meeting, hello);
  }
  void recv(uint64_t) override {
    iovec to{to_->place(0), size_};
    iovec from{reinterpret_cast<void*>(other_.address), size_};
    ssize_t got = process_vm_readv(other_.process, &to, 1, &from, 1, 0);
    if (got < 0) fail("process_vm_readv");
    if (static_cast<size_t>(got) != size_) throw std::runtime_error("process_vm_readv ended early");
  }

 private:
  size_t size_;
  Hello other_;
};

class HostCopy : public SlotWire {
 public:
  HostCopy(Meeting& meeting, Spec spec) : SlotWire(meeting), size_(spec.size) {
    spec.mode = Mode::kPut;
    give_and_take(spec, [&] { return std::make_unique<Buffer>(spec.size); });
    const Hello hello{getpid(), 0, nullptr, address_of(memory().place()), {}};
    to_there_ = reinterpret_cast<uint8_t*>(swap_hello(meeting, hello).address);
  }
  void send(uint64_t) override {
    std::memcpy(to_there_, from_->place(0), size_);
    // The copy must be complete before the clock is read.
    asm volatile("" : : "r"(to_there_) : "memory");
  }

 private:
  size_t size_;
  uint8_t* to_there_;
};

// ---- GPU memory

// Maps a block of the other side's device memory into this process.
class Mapped {
 public:
  // `mine`: the block that the other side maps. Both sides must construct it.
  Mapped(Link& link, const Device& device, const Buffer& mine) : device_(device) {
    Current current(device);
    const GpuDriver& driver = device.driver();
    Hello hello{getpid(), device.ordinal(), device.context(), address_of(mine.place()), {}};
    BENCH_CUDA(driver, ipc_export, &hello.handle, hello.address);
    const Hello other = swap_hello(link, hello);
    if (other.process == getpid()) {
      theirs_ = other.address;
      enable_access(other);
    } else {
      BENCH_CUDA(driver, ipc_open, &opened_, other.handle, cuda::kIpcLazyPeerAccess);
      theirs_ = opened_;
    }
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() {
    Current current(device_);
    if (opened_) device_.driver().ipc_close(opened_);
  }
  cuda::DevicePtr theirs() const { return theirs_; }

 private:
  // Without peer access, copies between devices of one process are staged through host memory.
  void enable_access(const Hello& other) {
    const GpuDriver& driver = device_.driver();
    int may = 0;
    if (other.ordinal == device_.ordinal()) return;
    BENCH_CUDA(driver, device_can_access_peer, &may, device_.ordinal(), other.ordinal);
    if (!may) return;
    cuda::Code code = driver.context_enable_peer(other.context, 0);
    if (code != cuda::kPeerAccessAlreadyEnabled) driver.check(code, "context_enable_peer");
  }

  const Device& device_;
  cuda::DevicePtr opened_ = 0;
  cuda::DevicePtr theirs_ = 0;
};

// The driver sub-allocates smaller blocks, and an IPC handle maps the whole underlying allocation.
constexpr size_t kOwnBlock = 2 << 20;

std::unique_ptr<Buffer> own_block(const Device& device, const Spec& spec, size_t size) {
  return std::make_unique<GpuBuffer>(device, spec, size, kOwnBlock);
}

// Copies into the other side's memory; an operation ends when the stream is synchronized.
class GpuCopies : public SlotWire {
 public:
  GpuCopies(Meeting& meeting, const Spec& spec, const Device& device, bool messages)
      : SlotWire(meeting), device_(device), meeting_(meeting), size_(spec.size) {
    const size_t size = spec.size * spec.window;
    const bool every_way = messages || spec.both;
    const int number = meeting.number();
    std::unique_ptr<Buffer> inbox = own_block(device, spec, size);
    mapped_.emplace(meeting, device, *inbox);
    two_sided_ = every_way;
    passive_ = !every_way && number != 0;
    if (every_way || number == 0) {
      give(spec, {number, number == 0 || spec.both}, own_block(device, spec, size));
    }
    if (every_way || number != 0) {
      take(spec, {1 - number}, std::move(inbox));
    }
    inbox_ = std::move(inbox);
    Current current(device);
    BENCH_CUDA(device.driver(), stream_create, &stream_, cuda::kStreamNonBlocking);
  }
  ~GpuCopies() override {
    Current current(device_);
    device_.driver().stream_destroy(stream_);
  }

  void isend(uint64_t i) override {
    BENCH_CUDA(device_.driver(), memcpy_async, mapped_->theirs() + from_->offset(i),
               address_of(from_->place(i)), size_, stream_);
    if (i == 0) ended_ = 0;
    begun_ = i + 1;
  }
  // One synchronization ends all operations in flight.
  void sent(uint64_t i) override {
    if (i < ended_) return;
    BENCH_CUDA(device_.driver(), stream_synchronize, stream_);
    ended_ = begun_;
  }

 protected:
  const Device& device_;
  Meeting& meeting_;
  cuda::Stream stream_ = nullptr;

 private:
  size_t size_;
  std::unique_ptr<Buffer> inbox_;  // of a side that receives nothing: mapped by the other side
  std::optional<Mapped> mapped_;
  uint64_t begun_ = 0;
  uint64_t ended_ = 0;
};

// A message between two processes with the driver alone. With Mode::kEvent the copy waits for an
// event of another stream.
class PutFlag : public GpuCopies {
 public:
  PutFlag(Meeting& meeting, const Spec& spec, const Device& device)
      : GpuCopies(meeting, spec, device, /*messages=*/true) {
    if (spec.mode == Mode::kEvent) producer_.emplace(device, from_->memory());
  }
  void prepare(uint64_t i) override {
    if (producer_) producer_->produce(i, meeting_.first());
  }
  void send(uint64_t i) override {
    if (producer_) {
      BENCH_CUDA(device_.driver(), stream_wait_event, stream_, producer_->event(), 0);
    }
    isend(i);
    sent(i);
    meeting_.tell();
  }
  void recv(uint64_t) override { meeting_.await(); }

 private:
  std::optional<Producer> producer_;
};

// Lines of 16 bytes in the other process's memory, written and polled by kernels.
class Lines : public SlotWire {
 public:
  Lines(Meeting& meeting, const Spec& spec, const Device& device)
      : SlotWire(meeting),
        device_(device),
        kernels_(device),
        lines_(device, spec, lines_of(spec.size) * kLine, kOwnBlock),
        words_(device, Memory::kCuda, sizeof(LineCount) + sizeof(Findings)),
        mapped_(meeting, device, lines_) {
    const size_t room = lines_of(spec.size) * kPayload;
    give(spec, {meeting.number(), meeting.first()},
         std::make_unique<GpuBuffer>(device, spec, spec.size, room));
    take(spec, {1 - meeting.number()}, std::make_unique<GpuBuffer>(device, spec, spec.size, room));
    clear(lines_.place(), lines_of(spec.size) * kLine);
    clear(words_.data(), words_.size());
    device.synchronize();
    args_ = {address_of(lines_.place()), mapped_.theirs(), address_of(words_.data()),
             lines_of(spec.size), kernel_payload(spec, *this, words_.data() + sizeof(LineCount))};
    // All blocks of a receive must be resident at once, because they wait.
    const size_t lines = lines_of(spec.size);
    threads_ = static_cast<unsigned>(std::clamp<size_t>((lines + 31) / 32 * 32, 32, 512));
    blocks_ = static_cast<unsigned>(std::min<size_t>((lines + threads_ - 1) / threads_, 128));
    meeting.sync();
  }
  void isend(uint64_t) override { kernels_.launch_early(send_, blocks_, threads_, args_); }
  void irecv(uint64_t) override { kernels_.launch_early(receive_, blocks_, threads_, args_); }

  // Runs the whole exchange within one kernel.
  Outcome in_kernel(const Spec& spec) {
    return kernel_row(spec, *this, device_, kernels_, "bench_line_pingpong", args_);
  }

 private:
  static constexpr size_t kLine = 16;
  static constexpr size_t kPayload = 12;
  static size_t lines_of(size_t size) { return (size + kPayload - 1) / kPayload; }
  void clear(uint8_t* at, size_t size) {
    BENCH_CUDA(device_.driver(), memset8_async, address_of(at), 0, size, device_.stream());
  }

  const Device& device_;
  const Kernels kernels_;
  const cuda::Function send_ = kernels_.find("bench_line_send");
  const cuda::Function receive_ = kernels_.find("bench_line_recv");
  GpuBuffer lines_;  // written by the other side
  GpuBlock words_;   // LineCount, Findings
  Mapped mapped_;
  LineArgs args_{};
  unsigned threads_;
  unsigned blocks_;
};

Outcome gpu_floor(Meeting& meeting, const Spec& spec, const std::string& name,
                  const Device& device) {
  Current current(device);
  if (is_ordered(spec.mode)) {
    Lines wire(meeting, spec, device);
    if (spec.mode == Mode::kKernel) return wire.in_kernel(spec);
    return stream_row(wire, device, spec);
  }
  if (name == "memcpy") {
    GpuCopies wire(meeting, spec, device, /*messages=*/false);
    return run(wire, spec);
  }
  PutFlag wire(meeting, spec, device);
  return run(wire, spec);
}

}  // namespace

Meeting::Meeting(int number) : number_(number) {
  if (!first()) return;
  fd_ = memfd_create("onehop-bench", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, sizeof(Page)) != 0) fail("memfd_create");
  map();
  new (page_) Page();
}

Meeting::~Meeting() {
  if (page_) munmap(page_, sizeof(Page));
  if (fd_ >= 0) close(fd_);
}

void Meeting::map() {
  void* at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) fail("mmap");
  page_ = static_cast<Page*>(at);
}

std::string Meeting::place() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

void Meeting::join(const std::string& place) {
  if (first()) return;
  fd_ = open(place.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) fail("open of the other side's shared page");
  map();
}

void Meeting::rest() { usleep(0); }

void Meeting::sync() {
  page_->arrived[number_].number.store(++round_, std::memory_order_release);
  await_value(page_->arrived[1 - number_].number, round_);
}

Bytes Meeting::swap(const Bytes& bytes) {
  if (bytes.size() > kMostBytes) throw std::length_error("the sides give each other 1 KiB at most");
  auto& mine = page_->given[number_];
  const auto& theirs = page_->given[1 - number_];
  mine.size = bytes.size();
  std::memcpy(mine.data, bytes.data(), bytes.size());
  sync();
  Bytes found(theirs.data, theirs.data + theirs.size);
  sync();
  return found;
}

Outcome Yardstick::floor(const Spec& spec, const std::string& name) {
  if (device) return gpu_floor(meeting, spec, name, *device);
  std::unique_ptr<Wire> wire;
  if (name == "flag") wire = std::make_unique<Flag>(meeting, spec);
  if (name == "process_vm") wire = std::make_unique<ReadOther>(meeting, spec);
  if (name == "memcpy") wire = std::make_unique<HostCopy>(meeting, spec);
  if (!wire) throw std::invalid_argument("there is no floor '" + name + "' of host memory");
  Spec single = spec;
  single.op = Op::kLatency;
  return run(*wire, single);
}

}  // namespace bench
