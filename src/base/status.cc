// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <errno.h>

#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace oh {

std::string vstrf(const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  int length = std::vsnprintf(nullptr, 0, format, arguments);
  std::string text(static_cast<size_t>(length < 0 ? 0 : length), '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

std::string strf(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = vstrf(format, arguments);
  va_end(arguments);
  return text;
}

Status error(oh_status code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Status status(code, vstrf(format, arguments));
  va_end(arguments);
  return status;
}

Status timed_out(int64_t waited_ns, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = vstrf(format, arguments);
  va_end(arguments);
  return error(OH_ERR_TIMEOUT, "the deadline passed after %.3f s: %s",
               static_cast<double>(waited_ns) / 1e9, text.c_str());
}

Status Status::from_errno(oh_status code, int error_number, const std::string& what) {
  const char* remedy = error_number == EMFILE ? "; raise the limit of open files (ulimit -n)" : "";
  return Status(code, what + ": " + errno_name(error_number) + " (" + errno_text(error_number) +
                          ")" + remedy);
}

const std::string& Status::text() const {
  static const std::string* const success = new std::string("success");
  return rep_ ? rep_->text : *success;
}

namespace {
struct Entry {
  oh_status code;
  const char* name;
  oh_scope scope;
  const char* text;
};
constexpr Entry kEntries[] = {
#define OH_STATUS_ENTRY(name, value, scope, text) {name, #name, scope, text},
    OH_STATUS_LIST(OH_STATUS_ENTRY)
#undef OH_STATUS_ENTRY
};
const Entry* find(oh_status code) {
  for (const Entry& entry : kEntries) {
    if (entry.code == code) return &entry;
  }
  return nullptr;
}
}  // namespace

const char* status_name(oh_status code) {
  const Entry* entry = find(code);
  return entry ? entry->name : "OH_UNKNOWN";
}

const char* status_text(oh_status code) {
  const Entry* entry = find(code);
  return entry ? entry->text : "unknown status code";
}

oh_status status_from(int64_t number, oh_status otherwise) {
  for (const Entry& entry : kEntries) {
    if (static_cast<int64_t>(entry.code) == number) return entry.code;
  }
  return otherwise;
}

oh_scope status_scope(oh_status code) {
  const Entry* entry = find(code);
  return entry ? entry->scope : OH_SCOPE_ENDPOINT;
}

}  // namespace oh
