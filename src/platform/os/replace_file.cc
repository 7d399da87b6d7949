// SPDX-License-Identifier: Apache-2.0
#include "platform/os/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace oh {
namespace {

// Takes ownership of `fd`. Returns 0, or the errno.
int write_all(int fd, const std::function<void(FILE*)>& write) {
  FILE* file = fdopen(fd, "w");
  if (!file) {
    const int failure = errno;
    close(fd);
    return failure;
  }
  write(file);
  int failure = 0;
  if (std::fflush(file) != 0 || std::ferror(file)) failure = errno ? errno : EIO;
  if (std::fclose(file) != 0 && failure == 0) failure = errno;
  return failure;
}

}  // namespace

Status replace_file(const std::string& path, unsigned mode, const std::string& what,
                    const std::function<void(FILE*)>& write) {
  const std::string fresh = path + kFreshSuffix;
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  const int fd = open(fresh.c_str(), flags, mode);
  int failure = fd < 0 ? errno : write_all(fd, write);
  if (failure == 0 && std::rename(fresh.c_str(), path.c_str()) != 0) failure = errno;
  if (failure == 0) return {};
  if (fd >= 0) unlink(fresh.c_str());
  return Status::from_errno(OH_ERR_SYSTEM, failure,
                            what + " cannot be written to " + path + " by way of " + fresh);
}

}  // namespace oh
