// SPDX-License-Identifier: Apache-2.0
//
// For tests of messages: a link without a peer, and requests owned by the test.
#pragma once

#include <gtest/gtest.h>

#include <deque>

#include "message/any_source.h"
#include "path/direct/transfers.h"
#include "path/message_selection.h"
#include "unit/fake_link.h"

namespace unit {

class MessageTest : public ::testing::Test {
 protected:
  MessageTest() {
    link_.any_source = &any_source_;
    link_.my_bell = &page_.doorbell();
    link_.mine.eager_credit = link_.theirs.eager_credit = 4096;
    link_.mine.eager_max = link_.theirs.eager_max = 1024;
    link_.mine.max_pending = 16;
    link_.granted_inline = 256;
    channel_.part = 4096;
    oh::LinkFacts facts;
    facts.eager_max = facts.their_eager_max = 1024;
    facts.eager_credit = 4096;
    facts.granted_inline = 256;
    facts.single_frame = 4096;
    selection_ = oh::MessageSelection(facts);
    link_.selection = &selection_;
  }
  oh::Request& request(oh::OpKind kind, uint64_t tag, oh::Bytes& buffer) {
    oh::Request& made = requests_.emplace_back();
    made.kind = kind;
    made.tag = tag;
    made.data = buffer.data();
    made.size = buffer.size();
    return made;
  }

  FakeLink fake_;
  oh::Link& link_ = fake_.link;
  FakeChannel& channel_ = *fake_.channel;
  oh::ControlPage page_ = std::move(*oh::ControlPage::create());
  oh::AnySource any_source_;
  oh::MessageSelection selection_;
  oh::Transfers transfers_{link_};
  std::deque<oh::Request> requests_;
};

}  // namespace unit
