// SPDX-License-Identifier: Apache-2.0
//
// ImmediateCopies: puts and gets of one link whose bytes the calling thread copies, guarded against
// the region being retired and the link being lost meanwhile.
//
// Threading: any thread, without the link's lock.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "link/link.h"
#include "memory/control_page.h"
#include "one_sided/move.h"

namespace oh {

class ImmediateCopies {
 public:
  explicit ImmediateCopies(Link& link) : link_(link) {}
  // Before the link is used: the other side's control page, which says which regions are valid.
  void open(std::shared_ptr<const ControlPage> page) { page_ = std::move(page); }

  // Copies parts that take the same immediate path; `taken`: how they travelled.
  Status copy(std::span<const ChosenPart> chosen, const Move& move, oh_path* taken);
  // Checks that the region is valid, and holds its mapping.
  Result<Part> admit(const ChosenPart& chosen) const;
  // Whether a thread is in copy().
  bool busy() const { return copies_.load(std::memory_order_seq_cst) != 0; }

 private:
  Link& link_;
  std::shared_ptr<const ControlPage> page_;
  std::atomic<uint32_t> copies_{0};
};

}  // namespace oh
