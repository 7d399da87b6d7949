// SPDX-License-Identifier: Apache-2.0
//
// Orphans: memory that Python has dropped and that may still be touched. It is kept until it is
// free, which is asked at later calls.
//
// Threading: needs the GIL.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

namespace onehop::python {

class Orphan {
 public:
  virtual ~Orphan() = default;
  // Releases the memory if it is no longer accessed.
  virtual bool try_release() = 0;
};

class Orphans {
 public:
  // Keeps it until it is released, which may be now. Null is ignored.
  void adopt(std::unique_ptr<Orphan> orphan);
  // Keeps it; it is not asked before the next sweep.
  void keep(std::unique_ptr<Orphan> orphan) { orphans_.push_back(std::move(orphan)); }
  // Lets some go that have become free. Cheap when there are none.
  void sweep();
  // Lets all go that have become free. Returns how many are left.
  size_t sweep_all();

 private:
  void sweep(size_t count);

  std::deque<std::unique_ptr<Orphan>> orphans_;
};

// Of requests and regions. Never destroyed: what is left at exit may still be written by a peer.
Orphans& orphans();

}  // namespace onehop::python
