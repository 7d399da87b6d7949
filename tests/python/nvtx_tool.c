// SPDX-License-Identifier: Apache-2.0
//
// A tool for NVTX 3 as NVTX_INJECTION64_PATH names it: writes the ranges and marks of domains to the
// file NVTX_TOOL_LOG, a line each. The declarations are those of NVTX's interface for tools.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Attributes {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t reserved;
  union {
    uint64_t number;
  } payload;
  int32_t message_type;
  union {
    const char* ascii;
  } message;
} Attributes;

typedef void (*Function)(void);
typedef struct Callbacks {
  size_t size;
  int (*function_table)(int module, Function*** table, unsigned* size);
} Callbacks;
typedef const void* (*GetTable)(uint32_t id);

enum { kCallbacks = 1, kCore2 = 5, kMark = 1, kStart = 2, kEnd = 3, kCreate = 12 };

static FILE* file;
static uint64_t last;

static void* create_domain(const char* name) {
  fprintf(file, "domain %s\n", name);
  return strdup(name);
}
static void mark(void* domain, const Attributes* about) {
  fprintf(file, "mark %s %s\n", (const char*)domain, about->message.ascii);
}
static uint64_t start_range(void* domain, const Attributes* about) {
  const uint64_t id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  fprintf(file, "start %llu %s %llu %s\n", (unsigned long long)id, (const char*)domain,
          (unsigned long long)about->payload.number, about->message.ascii);
  return id;
}
static void end_range(void* domain, uint64_t id) {
  fprintf(file, "end %llu %s\n", (unsigned long long)id, (const char*)domain);
}

int InitializeInjectionNvtx2(GetTable get_table) {
  const Callbacks* callbacks = get_table(kCallbacks);
  Function** table = NULL;
  unsigned size = 0;
  if (!callbacks || !callbacks->function_table(kCore2, &table, &size) || size <= kCreate) return 0;
  file = fopen(getenv("NVTX_TOOL_LOG"), "a");
  if (!file) return 0;
  setvbuf(file, NULL, _IOLBF, 0);
  *table[kMark] = (Function)mark;
  *table[kStart] = (Function)start_range;
  *table[kEnd] = (Function)end_range;
  *table[kCreate] = (Function)create_domain;
  return 1;
}
