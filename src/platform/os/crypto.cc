// SPDX-License-Identifier: Apache-2.0
#include "platform/os/crypto.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <vector>

#include "platform/os/fork.h"
#include "platform/os/os.h"

namespace oh {

Result<const Crypto*> Crypto::open(const std::string& path) {
  struct Opened {
    std::mutex mutex;
    std::map<std::string, Crypto> by_path;
  };
  Opened& opened = of_this_process([] { return new Opened; });
  std::lock_guard lock(opened.mutex);
  auto known = opened.by_path.find(path);
  if (known != opened.by_path.end()) return const_cast<const Crypto*>(&known->second);

  std::vector<std::string> names = {path};
  if (path.empty()) names = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};
  std::string tried;
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
      const char* why = dlerror();
      tried += strf("%s%s", tried.empty() ? "" : "; ", why ? why : name.c_str());
      continue;
    }
    Crypto crypto;
    crypto.hmac_ = reinterpret_cast<HmacFunction>(dlsym(library, "HMAC"));
    crypto.sha256_ = reinterpret_cast<Sha256Function>(dlsym(library, "EVP_sha256"));
    crypto.library_ = name;
    if (crypto.hmac_ && crypto.sha256_) {
      OH_RETURN_IF_ERROR(crypto.check());
      return const_cast<const Crypto*>(&opened.by_path.emplace(path, crypto).first->second);
    }
    tried += strf("%s%s lacks HMAC or EVP_sha256", tried.empty() ? "" : "; ", name.c_str());
  }
  return error(
      OH_ERR_NO_CRYPTO,
      "links cannot be authenticated without OpenSSL's libcrypto (%s): install it (package "
      "libssl3 or openssl-libs) or name it in ONEHOP_LIBCRYPTO",
      tried.c_str());
}

// Checks RFC 4231, test case 2. The first use also makes OpenSSL read its configuration, which
// takes a few milliseconds: do it now, not while a peer waits.
Status Crypto::check() const {
  constexpr uint8_t kExpected[] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24,
                                   0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27,
                                   0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  OH_ASSIGN_OR_RETURN(Digest digest,
                      hmac(as_bytes("Jefe"), as_bytes("what do ya want for nothing?")));
  if (equal_digests(digest, kExpected)) return {};
  return error(OH_ERR_NO_CRYPTO, "%s computes HMAC-SHA256 wrongly", library_.c_str());
}

Result<Digest> Crypto::hmac(ByteView key, ByteView data) const {
  Digest digest{};
  unsigned int size = 0;
  // An empty key is valid, but a null pointer is not.
  static constexpr uint8_t kNothing = 0;
  const unsigned char* made =
      hmac_(sha256_(), key.empty() ? &kNothing : key.data(), static_cast<int>(key.size()),
            data.empty() ? &kNothing : data.data(), data.size(), digest.data(), &size);
  if (!made || size != digest.size()) {
    return error(OH_ERR_NO_CRYPTO, "%s refused to compute HMAC-SHA256", library_.c_str());
  }
  return digest;
}

bool equal_digests(const Digest& a, ByteView b) {
  if (b.size() != a.size()) return false;
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

Result<Key> random_key() {
  Key key;
  int result = os().getrandom(key.data(), key.size());
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  return key;
}

}  // namespace oh
