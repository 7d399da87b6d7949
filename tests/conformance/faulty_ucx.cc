// SPDX-License-Identifier: Apache-2.0
#include "conformance/faulty_ucx.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "sanitizers.h"

namespace conformance {

const Seam& seam() {
  static const Seam only = [] {
    void* library = dlopen(FAULTY_UCX_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    Seam found{};
    find(found.fail, "faulty_ucx_fail");
    find(found.struck, "faulty_ucx_struck");
    find(found.counts, "faulty_ucx_counts");
    find(found.calls, "faulty_ucx_calls");
    return found;
  }();
  return only;
}

void set_rules(const std::string& rules) { ASSERT_EQ(seam().fail(rules.c_str()), 0) << rules; }

::testing::AssertionResult nothing_is_open() {
  FaultyUcxCounts open{};
  auto count = [&] {
    seam().counts(&open);
    return open.configs + open.workers + open.addresses + open.endpoints + open.requests +
           open.data + open.mapped + open.packed + open.keys;
  };
  if (!eventually([&] { return count() == 0; })) {
    return ::testing::AssertionFailure()
           << "open: " << open.configs << " configs, " << open.workers << " workers, "
           << open.addresses << " addresses, " << open.endpoints << " endpoints, " << open.requests
           << " requests, " << open.data << " data, " << open.mapped << " mapped, " << open.packed
           << " packed, " << open.keys << " keys";
  }
  return ::testing::AssertionSuccess();
}

void run_faulty(const std::map<std::string, std::string>& env, const Role& role) {
  if (!has_ucx()) GTEST_SKIP() << "no UCX here: libucp.so.0 of 1.13 or newer";
  LinkKind kind{.name = "faulty",
                .env = {{"UCX_TLS", "tcp"},
                        {"UCX_NET_DEVICES", "lo"},
                        {"UCX_LOG_LEVEL", "error"},
                        {"ONEHOP_INTERFACE", "127.0.0.1"},
                        {"ONEHOP_HELLO_TIMEOUT", kSanitized ? "6" : "2"},
                        {"ONEHOP_LOG", "off"}},
                .path = OH_PATH_UCX};
  kind.env.insert(env.begin(), env.end());
  const Role with_seam = [&](Side& side) {
    if (const char* real = getenv("ONEHOP_UCX_LIBRARY")) setenv("FAULTY_UCX_REAL", real, 1);
    setenv("ONEHOP_UCX_LIBRARY", FAULTY_UCX_LIBRARY, 1);
    role(side);
  };
  run_apart(kind, with_seam, with_seam);
}

}  // namespace conformance
