// SPDX-License-Identifier: Apache-2.0
#include "memory/control_page.h"

namespace oh {

Result<ControlPage> ControlPage::create() {
  ControlPage page;
  OH_ASSIGN_OR_RETURN(page.memory_, make_shared_memory("onehop-control", kSize));
  return page;
}

Result<ControlPage> ControlPage::open(UniqueFd fd) {
  ControlPage page;
  OH_ASSIGN_OR_RETURN(page.memory_.mapping, Mapping::of_fd(fd.get(), kSize, /*populate=*/false));
  return page;
}

}  // namespace oh
