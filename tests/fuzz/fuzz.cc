// SPDX-License-Identifier: Apache-2.0
#include "fuzz/fuzz.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::check({data, size});
  return 0;
}

// Writes the seeds into a folder of their own and adds it to the corpora, unless single files are
// to be shown again.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    if (std::filesystem::is_regular_file((*arguments)[i])) return 0;
  }
  std::string folder = std::filesystem::temp_directory_path() / "onehop-seeds-XXXXXX";
  if (!mkdtemp(folder.data())) return 0;
  int number = 0;
  for (const oh::Bytes& seed : fuzz::seeds()) {
    std::ofstream file(folder + "/" + std::to_string(number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<long>(seed.size()));
  }
  static std::string added = folder;
  static std::vector<char*> more(*arguments, *arguments + *count);
  more.push_back(added.data());
  *count = static_cast<int>(more.size());
  more.push_back(nullptr);
  *arguments = more.data();
  return 0;
}
