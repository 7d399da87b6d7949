// SPDX-License-Identifier: Apache-2.0
//
// TypeCache: caches facts about the type of an object, so that its attributes are looked up once
// per type and not per call. Direct-mapped and small: a new type evicts the one in its entry.
//
// Threading: needs the GIL. Ownership: references the cached types until clear().
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

namespace onehop::python {

template <typename Fact>
class TypeCache {
 public:
  // Null: not cached. Valid until the next put().
  const Fact* find(PyTypeObject* type) const {
    const Entry& entry = entries_[place(type)];
    return entry.type.ptr() == reinterpret_cast<PyObject*>(type) ? &entry.fact : nullptr;
  }
  void put(PyTypeObject* type, const Fact& fact) {
    Entry& entry = entries_[place(type)];
    // Release the former type last: that may run Python code.
    nanobind::object former = std::move(entry.type);
    entry = {nanobind::borrow(reinterpret_cast<PyObject*>(type)), fact};
  }
  void clear() {
    for (Entry& entry : entries_) nanobind::object former = std::move(entry.type);
  }

 private:
  static constexpr size_t kEntries = 32;
  struct Entry {
    nanobind::object type;
    Fact fact{};
  };
  static size_t place(PyTypeObject* type) {
    auto address = reinterpret_cast<uintptr_t>(type);
    return (address >> 4 ^ address >> 9) % kEntries;
  }
  std::array<Entry, kEntries> entries_;
};

}  // namespace onehop::python
