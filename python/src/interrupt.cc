// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <nanobind/stl/string.h>

#include <cstdio>
#include <ctime>
#include <string_view>

#include "errors.h"

namespace onehop::python {
namespace {
constexpr char kBegin[] = "the deadline passed after ";
}  // namespace

int64_t timeout_ns(nb::handle timeout, int64_t default_ns) {
  if (timeout.ptr() == Py_Ellipsis) return default_ns;
  if (timeout.is_none()) return OH_TIMEOUT_NEVER;
  double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    throw TypeMismatch("timeout is of type " + name_of_type(timeout) +
                       ": give seconds, or None to wait for ever");
  }
  if (!(seconds >= 0)) {
    raise_invalid("timeout is " + std::to_string(seconds) +
                  ": give seconds from 0, or None to wait for ever");
  }
  if (seconds >= 9e9) return OH_TIMEOUT_NEVER;
  // The C API reads zero as the default.
  auto nanoseconds = static_cast<int64_t>(seconds * 1e9);
  return nanoseconds > 0 ? nanoseconds : 1;
}

bool on_main_thread() {
  // Only the main thread runs signal handlers. Ask the interpreter, which also knows it after
  // fork().
  nb::object threading = nb::module_::import_("threading");
  return nb::cast<unsigned long>(threading.attr("main_thread")().attr("ident")) ==
         PyThread_get_thread_ident();
}

int64_t Patience::now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void Patience::first_has_passed() {
  if (end_ == 0 && timeout_ns_ != OH_TIMEOUT_NEVER) end_ = now() - first() + timeout_ns_;
}

bool Patience::more() {
  check_signals();
  first_has_passed();
  over_ = timeout_ns_ != OH_TIMEOUT_NEVER && now() >= end_;
  return !over_;
}

int64_t Patience::next() const {
  if (timeout_ns_ == OH_TIMEOUT_NEVER) return kSliceNs;
  int64_t left = end_ - now();
  if (left < 1) left = 1;
  return left < kSliceNs ? left : kSliceNs;
}

std::string Patience::of_all_slices(const std::string& text) const {
  static constexpr std::string_view kEnd = " s: ";
  size_t end = text.find(kEnd);
  if (!over_ || text.rfind(kBegin, 0) != 0 || end == std::string::npos) return text;
  return deadline_passed() + text.substr(end + kEnd.size());
}

std::string Patience::deadline_passed() const {
  char text[64];
  std::snprintf(text, sizeof(text), "%s%.3f s: ", kBegin, static_cast<double>(timeout_ns_) / 1e9);
  return text;
}

}  // namespace onehop::python
