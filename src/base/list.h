// SPDX-License-Identifier: Apache-2.0
//
// Intrusive doubly linked list: nothing is allocated on the data path. A class that derives from
// ListNode<A> and ListNode<B> can be in a List<T, A> and a List<T, B> at once.
//
// Threading: guarded by the owner of the list.
#pragma once

#include <cstddef>

namespace oh {

template <typename Tag>
struct ListNode {
  ListNode* next = nullptr;
  ListNode* previous = nullptr;
  bool linked() const { return next != nullptr; }
};

template <typename T, typename Tag>
class List {
  using Node = ListNode<Tag>;

 public:
  List() { head_.next = head_.previous = &head_; }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool empty() const { return head_.next == &head_; }
  size_t size() const { return size_; }
  T* front() const { return owner(head_.next); }
  T* back() const { return owner(head_.previous); }
  // The neighbours of `item`, or nullptr at the ends.
  T* next(const T* item) const { return owner(static_cast<const Node*>(item)->next); }
  T* previous(const T* item) const { return owner(static_cast<const Node*>(item)->previous); }

  void push_back(T* item) { insert_before(nullptr, item); }
  void push_front(T* item) { insert_before(front(), item); }
  // Inserts before `position`, or at the end if that is nullptr.
  void insert_before(T* position, T* item) {
    Node* node = item;
    Node* after = position ? static_cast<Node*>(position) : &head_;
    node->previous = after->previous;
    node->next = after;
    after->previous->next = node;
    after->previous = node;
    ++size_;
  }
  void erase(T* item) {
    Node* node = item;
    node->previous->next = node->next;
    node->next->previous = node->previous;
    node->next = node->previous = nullptr;
    --size_;
  }
  T* pop_front() {
    T* item = front();
    if (item) erase(item);
    return item;
  }

 private:
  T* owner(Node* node) const { return node == &head_ ? nullptr : static_cast<T*>(node); }

  Node head_;
  size_t size_ = 0;
};

}  // namespace oh
