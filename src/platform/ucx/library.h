// SPDX-License-Identifier: Apache-2.0
//
// UCX, opened at run time: a table of libucp's entry points. onehop does not link UCX; without it,
// open() returns a status that explains what was tried.
//
// Threading: any thread; the table is constant after open().
#pragma once

#include <string>

#include "base/status.h"
#include "platform/ucx/abi.h"

namespace oh::ucx {

struct Library {
#define OH_UCX_MEMBER(name, symbol, result, parameters) result(*name) parameters = nullptr;
  OH_UCX_FUNCTIONS(OH_UCX_MEMBER)
#undef OH_UCX_MEMBER
  std::string path;  // of the file
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  void* handle = nullptr;

  std::string version_text() const { return strf("%u.%u.%u", major, minor, release); }

  // `wanted` is ONEHOP_UCX_LIBRARY: a file, "off", or empty. If empty, tries in this order: a
  // libucp that is already loaded (two copies would mix, because their components have the same
  // names), that of the wheel beside this package, the system's. Opened once per process and value,
  // and never closed. OH_ERR_NOT_VIABLE: there is none, it is older than 1.13, or another one is
  // already loaded. OH_ERR_FORKED: it was opened before fork().
  static Result<const Library*> open(const std::string& wanted);

  Status failure(Code code, const char* call, const std::string& details) const;
};

// Whether this machine has RDMA network cards, for which UCX caches memory registrations.
bool has_rdma();
// Whether the UCX transport of this name accesses remote memory by the network card alone.
bool is_rdma_transport(const char* name);

// The exported symbol of each member, for error texts.
namespace symbol {
#define OH_UCX_SYMBOL(name, symbol, result, parameters) inline constexpr const char* name = #symbol;
OH_UCX_FUNCTIONS(OH_UCX_SYMBOL)
#undef OH_UCX_SYMBOL
}  // namespace symbol

}  // namespace oh::ucx
