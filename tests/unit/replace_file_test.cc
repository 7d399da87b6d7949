// SPDX-License-Identifier: Apache-2.0
#include "platform/os/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "unit/support.h"

namespace replace_file_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Status put(const std::string& path, const std::string& text) {
  return replace_file(path, 0600, "the text", [&](FILE* file) { std::fputs(text.c_str(), file); });
}

TEST(ReplaceFileTest, ReadersHaveTheFormerFileOrTheNewOne) {
  unit::TempDir dir;
  const std::string path = dir.path() + "/file";
  ASSERT_TRUE(is_ok(put(path, "former and longer")));
  std::ifstream reader(path);
  ASSERT_TRUE(is_ok(put(path, "new")));
  std::ostringstream read;
  read << reader.rdbuf();
  EXPECT_EQ(read.str(), "former and longer");
  EXPECT_EQ(contents(path), "new");
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(ReplaceFileTest, AFailureLeavesTheFormerFile) {
  unit::TempDir dir;
  const std::string path = dir.path() + "/file";
  ASSERT_TRUE(is_ok(put(path, "former")));
  Status failed = replace_file(path, 0600, "the text", [](FILE* file) {
    UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(dup2(full.get(), fileno(file)), fileno(file));
    std::fputs("new", file);
  });
  EXPECT_TRUE(fails_with(failed, OH_ERR_SYSTEM, "ENOSPC"));
  EXPECT_TRUE(fails_with(failed, OH_ERR_SYSTEM, path));
  EXPECT_EQ(contents(path), "former");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(ReplaceFileTest, ALinkIsNotFollowed) {
  unit::TempDir dir;
  const std::string path = dir.path() + "/file";
  const std::string other = dir.path() + "/other";
  ASSERT_TRUE(is_ok(put(other, "of somebody else")));
  ASSERT_EQ(symlink(other.c_str(), (path + kFreshSuffix).c_str()), 0);
  EXPECT_TRUE(fails_with(put(path, "new"), OH_ERR_SYSTEM, "ELOOP"));
  EXPECT_EQ(contents(other), "of somebody else");
}

}  // namespace
}  // namespace replace_file_test
