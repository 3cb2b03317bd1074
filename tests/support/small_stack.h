// small_stack.h: a body run to its end on a thread of 256 KiB of stack, as `ulimit -s 256` gives a program.
#pragma once

#include <pthread.h>

#include <functional>
#include <stdexcept>

#include "runtime/base/parallel.h"

namespace thimble {

// Parallel loops of the body run on that thread too.
inline void run_on_small_stack(const std::function<void()>& body) {
  const ThreadLimit one(1);
  pthread_attr_t attributes;
  pthread_t thread{};
  auto call = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstacksize(&attributes, 256 << 10) != 0 ||
      pthread_create(&thread, &attributes, call, const_cast<std::function<void()>*>(&body)) != 0)
    throw std::runtime_error("cannot start a thread");
  pthread_attr_destroy(&attributes);
  pthread_join(thread, nullptr);
}

}  // namespace thimble
