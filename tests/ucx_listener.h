// SPDX-License-Identifier: Apache-2.0
//
// The listener of a UCX worker that belongs to no endpoint.
#pragma once

#include "transport/ucx/ucx_worker.h"

class NoListener final : public oh::UcxListener {
 public:
  void on_arrival() override {}
  void on_broken() override {}
  void on_room() override {}
  void count_polled(int) override {}
};
