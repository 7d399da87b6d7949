// SPDX-License-Identifier: Apache-2.0
//
// Everything that is said before a link is up.
#include "base/text.h"
#include "control/handshake.h"
#include "endpoint/pairing.h"
#include "fuzz/fuzz.h"

namespace fuzz {

using namespace oh;

std::vector<Bytes> seeds() {
  PeerIdentity identity;
  identity.label = "host:1";
  SideReport report;
  report.why_no_segment = "none";
  Bytes greeting = encode_greeting(identity);
  return {encode_hello(Id{}, Bytes(kHelloNonce), greeting), greeting, encode_report(report),
          encode_refusal(error(OH_ERR_AUTH, "no"))};
}

void check(ByteView input) {
  Exact exact(input);
  Result<HelloMessage> hello = decode_hello(exact.view());
  if (hello.ok()) (void)decode_greeting(hello->greeting).ok();

  Status refusal = decode_refusal(exact.view());
  require(!refusal.ok(), "a refusal is never success");
  require(status_scope(refusal.code()) != OH_SCOPE_ENDPOINT, "nor does it blame our endpoint");
  require(printable(refusal.text(), 4096) == refusal.text(), "its text can be shown");

  Result<PeerIdentity> identity = decode_greeting(exact.view());
  if (identity.ok()) {
    Bytes again = encode_greeting(*identity);
    Result<PeerIdentity> back = decode_greeting(again);
    require(back.ok() && encode_greeting(*back) == again, "a greeting goes round");
  }
  Result<SideReport> report = decode_report(exact.view());
  if (report.ok()) {
    Bytes again = encode_report(*report);
    Result<SideReport> back = decode_report(again);
    require(back.ok() && encode_report(*back) == again, "a report goes round");
  }
}

}  // namespace fuzz
