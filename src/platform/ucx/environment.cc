// SPDX-License-Identifier: Apache-2.0
#include "platform/ucx/environment.h"

#include <unistd.h>

#include <algorithm>
#include <list>
#include <vector>

namespace oh::ucx {
namespace {
std::mutex& only_one() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
}  // namespace

EnvironmentWith::EnvironmentWith(char* setting) : lock_(only_one()), former_(environ) {
  static auto* const lists = new std::list<std::vector<char*>>;
  std::vector<char*> list;
  for (char** entry = environ; entry && *entry; ++entry) list.push_back(*entry);
  list.push_back(setting);
  list.push_back(nullptr);
  // Lists are never freed, but equal ones are shared: there are only as many as distinct
  // environments.
  auto known = std::find(lists->begin(), lists->end(), list);
  if (known == lists->end()) known = lists->insert(known, std::move(list));
  ours_ = known->data();
  environ = ours_;
}

EnvironmentWith::~EnvironmentWith() {
  // Otherwise another thread has changed the environment meanwhile and installed its own list.
  if (environ == ours_) environ = former_;
}

}  // namespace oh::ucx
