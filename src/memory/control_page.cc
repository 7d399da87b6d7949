// SPDX-License-Identifier: Apache-2.0
#include "memory/control_page.h"

namespace oh {

Result<ControlPage> ControlPage::create() {
  ControlPage page;
  OH_ASSIGN_OR_RETURN(page.fd_, make_memfd("onehop-control", kSize));
  OH_ASSIGN_OR_RETURN(page.mapping_, Mapping::of_fd(page.fd_.get(), kSize, /*populate=*/false));
  return page;
}

Result<ControlPage> ControlPage::open(UniqueFd fd) {
  ControlPage page;
  OH_ASSIGN_OR_RETURN(page.mapping_, Mapping::of_fd(fd.get(), kSize, /*populate=*/false));
  return page;
}

}  // namespace oh
