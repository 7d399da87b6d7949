// SPDX-License-Identifier: Apache-2.0
//
// MessageStreams: sends and receives runs of blocks as streams of Sender and Receiver.
//
// Threading: guarded by the link's lock.
#pragma once

#include "message/receiver.h"
#include "message/sender.h"
#include "path/staging/staging_path.h"

namespace oh {

class MessageStreams final : public RunStreams {
 public:
  MessageStreams(Sender& sender, Receiver& receiver) : sender_(sender), receiver_(receiver) {}
  void await_cts(Request* run) override { sender_.await_cts(run); }
  Status begin_incoming(Request* run, uint64_t op) override { return receiver_.begin_run(run, op); }
  void refuse(Request* run, const Status& why) override { sender_.refuse(run, why); }
  bool cancel(Request* run, const Status& status, bool give_up) override {
    return run->sends() ? sender_.cancel(run, status, give_up)
                        : receiver_.cancel(run, status, give_up);
  }
  bool stop(Request* run, const Status& why) override {
    return run->sends() ? sender_.stop(run, why) : receiver_.stop(run, why);
  }

 private:
  Sender& sender_;
  Receiver& receiver_;
};

}  // namespace oh
