// SPDX-License-Identifier: Apache-2.0
#include "memory/board.h"

namespace oh {

Result<Board> Board::create() {
  Board board;
  OH_ASSIGN_OR_RETURN(board.fd_, make_memfd("onehop-board", kSize));
  OH_ASSIGN_OR_RETURN(board.mapping_, Mapping::of_fd(board.fd_.get(), kSize, /*populate=*/false));
  return board;
}

Result<Board> Board::open(UniqueFd fd) {
  Board board;
  OH_ASSIGN_OR_RETURN(board.mapping_, Mapping::of_fd(fd.get(), kSize, /*populate=*/false));
  return board;
}

}  // namespace oh
