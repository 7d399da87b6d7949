// SPDX-License-Identifier: Apache-2.0
#include "held.h"

#include <algorithm>
#include <string>
#include <vector>

#include "errors.h"
#include "names.h"
#include "orphans.h"
#include "stream_mark.h"

namespace onehop::python {
namespace {

using HeldList = std::vector<std::unique_ptr<Held>>;

struct HeldForStream final : Orphan {
  std::shared_ptr<StreamMark> mark;
  std::unique_ptr<Held> held;

  bool try_release() override { return mark->passed(); }
};

// Never destroyed: memory that is left at exit may still be accessed.
Orphans& waiting() {
  static auto* const instance = new Orphans;
  return *instance;
}

struct OpenGroup {
  int depth = 0;
  HeldList held;
};
// A pointer, because a thread that ends cannot destroy it without the GIL. Null: no group is open.
thread_local OpenGroup* t_group = nullptr;

bool uses_memory(const Held& held) {
  if (held.local.size() > 0 || held.size.size() > 0) return true;
  return held.locals && std::any_of(held.locals->begin(), held.locals->end(),
                                    [](const Local& local) { return local.size() > 0; });
}

// The torch object of a stream.
nb::object torch_stream(const GivenStream& stream, int device) {
  static const Name kStream("cuda_stream");
  if (stream.object.is_valid() && try_attribute(stream.object, kStream).is_valid()) {
    return stream.object;
  }
  nb::object cuda = nb::module_::import_("torch").attr("cuda");
  if (!stream.handle) return cuda.attr("default_stream")(device);
  return cuda.attr("ExternalStream")(reinterpret_cast<uintptr_t>(stream.handle), device);
}

// Whether torch keeps the memory until the stream has passed (record_stream), so that it need not
// be held here.
bool recorded(const Local& local, const GivenStream& stream) {
  const Buffer* buffer = local.own_buffer();
  if (local.size() == 0) return true;
  if (!buffer || !buffer->is_torch()) return false;
  try {
    buffer->object().attr("record_stream")(torch_stream(stream, buffer->device()));
  } catch (nb::python_error&) {
    return false;  // hold it here instead
  }
  return true;
}

// All operations are enqueued: records a mark in each stream and keeps what they use until the
// stream reaches it.
void settle(HeldList all) {
  struct Marked {
    void* stream;
    int ordinal;  // devices share the handle of the default stream
    std::shared_ptr<StreamMark> mark;
  };
  std::vector<Marked> marks;
  for (std::unique_ptr<Held>& held : all) {
    void* stream = held->stream.handle;
    const int ordinal = held->link->context->ordinal();
    // An endpoint for host memory has enqueued nothing.
    if (!uses_memory(*held) || ordinal < 0) continue;
    if (StreamMark::is_captured(stream, ordinal)) continue;
    // Puts and gets are held in any case, and may use host memory or memory of another GPU.
    if (held->remotes.empty() && recorded(held->local, held->stream) &&
        recorded(held->size, held->stream)) {
      continue;
    }
    std::shared_ptr<StreamMark> mark;
    for (const Marked& known : marks) {
      if (known.stream == stream && known.ordinal == ordinal) mark = known.mark;
    }
    if (!mark) {
      mark = std::make_shared<StreamMark>(stream, ordinal);
      marks.push_back({stream, ordinal, mark});
    }
    auto kept = std::make_unique<HeldForStream>();
    kept->mark = std::move(mark);
    kept->held = std::move(held);
    waiting().keep(std::move(kept));
  }
}

}  // namespace

void hold(std::unique_ptr<Held> held) {
  HeldList one;
  HeldList& list = t_group ? t_group->held : one;
  list.push_back(std::move(held));
  if (!t_group) settle(std::move(one));
}

void begin_group() {
  check(oh_group_begin());
  if (!t_group) t_group = new OpenGroup;
  ++t_group->depth;
}

int group_depth() { return t_group ? t_group->depth : 0; }

void end_group() {
  if (!t_group) raise_invalid("the group was not begun by this thread");
  oh_status status;
  {
    WithoutGil release;
    status = oh_group_end();
  }
  std::string text = oh_error_text();
  if (--t_group->depth == 0) {
    std::unique_ptr<OpenGroup> group(std::exchange(t_group, nullptr));
    // Also after a failure, when all or none of the operations may be enqueued.
    settle(std::move(group->held));
  }
  if (status != OH_OK) throw_status(status, text);
}

void sweep_held() { waiting().sweep(); }

size_t sweep_all_held() { return waiting().sweep_all(); }

}  // namespace onehop::python
