// SPDX-License-Identifier: Apache-2.0
//
// MPI: mpiexec -n 2 mpi_pingpong latency|bandwidth [OPTIONS]
#include <mpi.h>

#include <cstring>

#include "pingpong.h"

namespace bench {
namespace {

enum { kData = 0, kControl = 1 };

class MpiLink : public Link {
 public:
  MpiLink() { MPI_Comm_rank(MPI_COMM_WORLD, &rank_); }
  int number() const override { return rank_; }
  // Used only by sync() and for one number of each side.
  Bytes swap(const Bytes& bytes) override {
    Bytes theirs(bytes.size());
    MPI_Sendrecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 1 - rank_, kControl,
                 theirs.data(), static_cast<int>(theirs.size()), MPI_BYTE, 1 - rank_, kControl,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return theirs;
  }

 private:
  int rank_ = 0;
};

class MpiWire : public SlotWire {
 public:
  MpiWire(Link& link, const Settings& settings)
      : SlotWire(link),
        size_(static_cast<int>(settings.spec.size)),
        other_(1 - link.number()),
        requests_(settings.spec.window) {
    give_and_take(settings.spec, [&] { return slots_of(settings); });
  }
  void isend(uint64_t i) override {
    MPI_Isend(from_->place(i), size_, MPI_BYTE, other_, kData, MPI_COMM_WORLD, at(from_, i));
  }
  void sent(uint64_t i) override { MPI_Wait(at(from_, i), MPI_STATUS_IGNORE); }
  void send(uint64_t i) override {
    MPI_Send(from_->place(i), size_, MPI_BYTE, other_, kData, MPI_COMM_WORLD);
  }
  void irecv(uint64_t i) override {
    MPI_Irecv(to_->place(i), size_, MPI_BYTE, other_, kData, MPI_COMM_WORLD, at(to_, i));
  }
  void received(uint64_t i) override { MPI_Wait(at(to_, i), MPI_STATUS_IGNORE); }
  void recv(uint64_t i) override {
    MPI_Recv(to_->place(i), size_, MPI_BYTE, other_, kData, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }

 private:
  MPI_Request* at(const Slots* slots, uint64_t i) { return &requests_[slots->slot(i)]; }

  int size_;
  int other_;
  std::vector<MPI_Request> requests_;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  std::string unused;
  MPI_Init(&argc, &argv);
  const bench::Settings settings = bench::read_settings("mpi", argc, argv, &unused, &unused);
  bench::MpiLink link;
  int code;
  {
    bench::MpiWire wire(link, settings);
    code = bench::measure(wire, settings, "");
  }
  MPI_Finalize();
  return code;
}
