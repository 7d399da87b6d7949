// SPDX-License-Identifier: Apache-2.0
//
// Status and Result: the error returns of every function in src/. Pointer-sized; success allocates
// nothing. The code that detects an error writes its text; callers propagate it.
//
// Threading: values; a Status may be moved between threads like a string.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "onehop/status.h"

namespace oh {

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string strf(const char* format, ...);
std::string vstrf(const char* format, va_list arguments);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(const Status& other) : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}
  Status(Status&&) = default;
  Status& operator=(const Status& other) {
    if (this != &other) rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
    return *this;
  }
  Status& operator=(Status&&) = default;

  // `text`: what was tried, with which values, and what to do about it.
  Status(oh_status code, std::string text)
      : rep_(code == OH_OK ? nullptr : std::make_unique<Rep>(Rep{code, std::move(text)})) {}

  // For a failed system call. Appends the name and text of `error_number`.
  static Status from_errno(oh_status code, int error_number, const std::string& what);

  bool ok() const { return rep_ == nullptr; }
  oh_status code() const { return rep_ ? rep_->code : OH_OK; }
  const std::string& text() const;

 private:
  struct Rep {
    oh_status code;
    std::string text;
  };
  std::unique_ptr<Rep> rep_;
};

[[gnu::format(printf, 2, 3)]] Status error(oh_status code, const char* format, ...);
// OH_ERR_TIMEOUT. The text begins with "the deadline passed after 5.000 s: ", as in all timeouts.
[[gnu::format(printf, 2, 3)]] Status timed_out(int64_t waited_ns, const char* format, ...);

// A value, or the status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}         // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 1; }
  const Status& status() const {
    static const Status* const success = new Status;
    return ok() ? *success : std::get<0>(state_);
  }
  T& value() { return std::get<1>(state_); }
  const T& value() const { return std::get<1>(state_); }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<Status, T> state_;
};

const char* status_name(oh_status code);
const char* status_text(oh_status code);
oh_scope status_scope(oh_status code);
// Converts a number from a peer to a code; `otherwise` if there is no such code.
oh_status status_from(int64_t number, oh_status otherwise);

}  // namespace oh

#define OH_CONCAT_INNER(a, b) a##b
#define OH_CONCAT(a, b) OH_CONCAT_INNER(a, b)

#define OH_RETURN_IF_ERROR(expression)       \
  do {                                       \
    ::oh::Status oh_status_ = (expression);  \
    if (!oh_status_.ok()) return oh_status_; \
  } while (false)

#define OH_ASSIGN_OR_RETURN(declaration, expression) \
  OH_ASSIGN_OR_RETURN_IMPL(OH_CONCAT(oh_result_, __LINE__), declaration, expression)
#define OH_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) return result.status();                       \
  declaration = std::move(result.value())
