// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"
#include "pattern_rank.h"

namespace bench {

void bind_patterns(nb::module_& module) {
  nb::enum_<Pattern>(module, "Pattern", "An exchange among ranks.")
      .value("SENDRECV", Pattern::kSendRecv)
      .value("SEND_MANY", Pattern::kSendMany)
      .value("RECV_MANY", Pattern::kRecvMany)
      .value("ALL_TO_ALL_V", Pattern::kAllToAllV)
      .value("DISPATCH", Pattern::kDispatch);
  nb::class_<PatternSpec>(module, "PatternSpec", "One row: all ranks are given the same.")
      .def(nb::init<>())
      .def_rw("pattern", &PatternSpec::pattern)
      .def_rw("size", &PatternSpec::size)
      .def_rw("iterations", &PatternSpec::iterations)
      .def_rw("warmup", &PatternSpec::warmup)
      .def_rw("graph", &PatternSpec::graph)
      .def_rw("memory", &PatternSpec::memory)
      .def_rw("corrupt", &PatternSpec::corrupt)
      .def("busiest", &busiest, "ranks"_a,
           "The most bytes that one rank sends to the others, or receives from them.");
  nb::class_<PatternRank>(module, "PatternRank", "A rank of the patterns.")
      .def(
          "__init__",
          [](PatternRank* self, uint32_t rank, uint32_t ranks, const std::string& device,
             const nb::bytes& id) {
            const auto* at = static_cast<const uint8_t*>(id.data());
            const onehop::Bytes bytes(at, at + id.size());
            nb::gil_scoped_release release;
            new (self) PatternRank(rank, ranks, device, bytes);
          },
          "rank"_a, "ranks"_a, "device"_a, "id"_a)
      .def("barrier", &PatternRank::barrier, NoGil())
      .def("run", &PatternRank::run, "spec"_a, NoGil());
  nb::class_<NcclRank>(module, "NcclRank", "NCCL's grouped sends and receives.")
      .def(nb::init<PatternRank&, const std::vector<std::string>&>(), "rank"_a, "libraries"_a,
           nb::keep_alive<1, 2>(), NoGil())
      .def_prop_ro("version", &NcclRank::version)
      .def("run", &NcclRank::run, "spec"_a, NoGil());
}

}  // namespace bench
