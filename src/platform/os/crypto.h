// SPDX-License-Identifier: Apache-2.0
//
// HMAC-SHA256 from OpenSSL's libcrypto, opened at run time. Without it no endpoint can be created:
// links are always authenticated.
//
// Threading: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/wire.h"

namespace oh {

using Digest = std::array<uint8_t, 32>;
using Key = std::array<uint8_t, 32>;

class Crypto {
 public:
  // `path` is ONEHOP_LIBCRYPTO; empty tries the usual names. Opened once per process and path.
  static Result<const Crypto*> open(const std::string& path);

  Result<Digest> hmac(ByteView key, ByteView data) const;
  const std::string& library() const { return library_; }

 private:
  Status check() const;

  using HmacFunction = unsigned char* (*)(const void* digest, const void* key, int key_size,
                                          const unsigned char* data, size_t size,
                                          unsigned char* out, unsigned int* out_size);
  using Sha256Function = const void* (*)();
  HmacFunction hmac_ = nullptr;
  Sha256Function sha256_ = nullptr;
  std::string library_;
};

// Compares in constant time.
bool equal_digests(const Digest& a, ByteView b);

Result<Key> random_key();

}  // namespace oh
