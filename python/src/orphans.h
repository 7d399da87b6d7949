// SPDX-License-Identifier: Apache-2.0
//
// Orphans: memory that Python has dropped but that may still be accessed. It is kept until the
// access has ended, which later calls check.
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
  // Keeps the orphan until it can be released, which may be at once. Ignores null.
  void adopt(std::unique_ptr<Orphan> orphan);
  // Keeps the orphan; it is not checked before the next sweep.
  void keep(std::unique_ptr<Orphan> orphan) { orphans_.push_back(std::move(orphan)); }
  // Releases some of those that are no longer accessed. Cheap if there are none.
  void sweep();
  // Releases all that are no longer accessed. Returns the number left.
  size_t sweep_all();

 private:
  void sweep(size_t count);

  std::deque<std::unique_ptr<Orphan>> orphans_;
};

// The orphans of requests and regions. Never destroyed: a peer may still write memory that is left
// at exit.
Orphans& orphans();

}  // namespace onehop::python
