// SPDX-License-Identifier: Apache-2.0
#include "rules.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "control.h"

namespace oh::ucx::faulty {
namespace {

constexpr const char* kNames[] = {
#define FAULTY_UCX_NAME(name, symbol, result, parameters) #symbol,
    OH_UCX_FUNCTIONS(FAULTY_UCX_NAME)
#undef FAULTY_UCX_NAME
};

bool returns_requests(Symbol where) {
  switch (where) {
    case Symbol::ucp_am_send_nbx:
    case Symbol::ucp_am_recv_data_nbx:
    case Symbol::ucp_put_nbx:
    case Symbol::ucp_get_nbx:
    case Symbol::ucp_ep_flush_nbx:
    case Symbol::ucp_ep_close_nbx:
      return true;
    default:
      return false;
  }
}

}  // namespace

Rules& Rules::instance() {
  static Rules* const only = [] {
    auto* rules = new Rules;  // outlives every thread
    const char* given = getenv("FAULTY_UCX");
    if (given && !rules->set(given)) {
      fprintf(stderr, "FAULTY_UCX=%s is not understood: see tests/faulty_ucx/control.h\n", given);
      abort();
    }
    return rules;
  }();
  return *only;
}

std::optional<Rules::Rule> Rules::parse(const std::string& text) {
  char name[64];
  char rest[16] = "";
  unsigned long long nth = 0;
  int code = 0;
  int at = 0;
  if (sscanf(text.c_str(), "%63[a-z_]:%llu%n", name, &nth, &at) != 2 || nth == 0) return {};
  const bool forever = text[static_cast<size_t>(at)] == '+';
  if (sscanf(text.c_str() + at + (forever ? 1 : 0), "=%d%15s", &code, rest) < 1) return {};
  const std::string how = rest;
  if (code > 0 || code <= kCodeLast) return {};
  When when = When::kNow;
  if (how == ":later") {
    when = When::kLater;
  } else if (how == ":never") {
    when = When::kNever;
  } else if (how == ":last") {
    when = When::kLast;
  } else if (!how.empty()) {
    return {};
  }
  for (int i = 0; i < static_cast<int>(Symbol::kCount); ++i) {
    if (strcmp(name, kNames[i]) != 0) continue;
    const auto where = static_cast<Symbol>(i);
    if (when != When::kNow && !returns_requests(where)) return {};
    return Rule{where, nth, forever, {static_cast<Code>(code), when}};
  }
  return {};
}

bool Rules::set(const std::string& text) {
  std::vector<Rule> rules;
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ',');) {
    std::optional<Rule> rule = parse(one);
    if (!rule) return false;
    rules.push_back(*rule);
  }
  std::lock_guard lock(mutex_);
  rules_ = std::move(rules);
  struck_.store(0);
  return true;
}

std::optional<uint64_t> Rules::calls(const std::string& name) const {
  for (int i = 0; i < static_cast<int>(Symbol::kCount); ++i) {
    if (name == kNames[i]) return calls_[i].load();
  }
  return {};
}

std::optional<Strike> Rules::visit(Symbol where) {
  calls_[static_cast<int>(where)].fetch_add(1);
  std::lock_guard lock(mutex_);
  std::optional<Strike> strike;
  for (Rule& rule : rules_) {
    if (rule.where != where || rule.left == 0) continue;
    --rule.left;
    if (rule.left > 0) continue;
    if (rule.forever) rule.left = 1;
    strike = rule.strike;
  }
  if (strike) struck_.fetch_add(1);
  return strike;
}

}  // namespace oh::ucx::faulty

extern "C" {
__attribute__((visibility("default"))) int faulty_ucx_fail(const char* rules) {
  return oh::ucx::faulty::Rules::instance().set(rules) ? 0 : -1;
}
__attribute__((visibility("default"))) uint64_t faulty_ucx_struck() {
  return oh::ucx::faulty::Rules::instance().struck();
}
__attribute__((visibility("default"))) uint64_t faulty_ucx_calls(const char* function) {
  return oh::ucx::faulty::Rules::instance().calls(function).value_or(UINT64_MAX);
}
}
