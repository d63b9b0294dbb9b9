# One makefile for everything. `make help` lists the targets; README.md says what to read next.
#
# Profiles: dev (default), asan (address+undefined sanitizers), opt (as shipped, glibc), static
# (as shipped: musl, fully static, envd only). Each builds into build/<profile>/.

PROFILE ?= dev
OUT ?= build
B := $(OUT)/$(PROFILE)
CC_dev := gcc
CC_asan := gcc
CC_opt := gcc
CC_static := musl-gcc
CC_fuzz := clang
ifeq ($(origin CC),default)
CC := $(CC_$(PROFILE))
endif

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef \
	-Wswitch-enum -Wpointer-arith -Wwrite-strings -Wimplicit-fallthrough -Wno-unused-parameter
ifdef CI
WARNINGS += -Werror
endif
CFLAGS_dev := -O1 -g
CFLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_opt := -O2 -g -D_FORTIFY_SOURCE=2 -fstack-protector-strong
CFLAGS_static := -Os -g -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables -fstack-protector-strong
CFLAGS_fuzz := -O1 -g -fsanitize=address,undefined,fuzzer-no-link -fno-omit-frame-pointer
LDFLAGS_asan := -fsanitize=address,undefined
LDFLAGS_fuzz := -fsanitize=address,undefined
LDFLAGS_static := -static -Wl,--gc-sections

VERSION := 0.1.0
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)

CPPFLAGS += -D_GNU_SOURCE -I. -I$(B)
CFLAGS += -std=gnu11 $(WARNINGS) $(CFLAGS_$(PROFILE)) $(EXTRA_CFLAGS)
LDFLAGS += $(LDFLAGS_$(PROFILE))

# llhttp: Debian 13 has a library; Debian 12's node-llhttp brings the generated C, to be compiled in
# its strict mode (the default build of that file is the lenient one).
ifeq ($(PROFILE),static)
LLHTTP_SOURCE := 1
else
LLHTTP_SOURCE := $(if $(shell pkg-config --exists libllhttp 2>/dev/null && echo y),,1)
endif
ifdef LLHTTP_SOURCE
CPPFLAGS += -I/usr/share/include/llhttp
LLHTTP_OBJECTS := $(patsubst %,$(B)/llhttp/%.o,api http llhttp)
else
LIBS += -lllhttp
endif

ifeq ($(PROFILE),static)
MUSL := $(OUT)/musl
CPPFLAGS += -isystem $(MUSL)/include
LDLIBS := $(MUSL)/lib/libuv.a $(MUSL)/lib/libjansson.a $(MUSL)/lib/libprotobuf-c.a $(MUSL)/lib/libz.a -lpthread
PREREQUISITES := $(MUSL)/.ready
else
LDLIBS := $(LIBS) -luv -ljansson -lprotobuf-c -lz -lpthread
endif

sources = $(sort $(foreach dir,$(1),$(wildcard $(dir)/*.c)))
objects = $(patsubst %.c,$(B)/%.o,$(1))

PROTOS := $(wildcard proto/*.proto)
PROTO_C := $(PROTOS:%.proto=$(B)/%.pb-c.c) $(B)/google/protobuf/timestamp.pb-c.c
PROTO_H := $(PROTO_C:.c=.h)
PROTO_OBJECTS := $(PROTO_C:.c=.o)

LIB_OBJECTS := $(call objects,$(call sources,lib)) $(LLHTTP_OBJECTS)
ENVD_DIRS := envd/rpc envd/filesystem envd/sandbox envd/process envd/jobs envd/watch envd
ENVD_OBJECTS := $(call objects,$(filter-out envd/main.c,$(call sources,$(ENVD_DIRS)))) $(PROTO_OBJECTS)
PROXY_DIRS := proxy/route proxy/front proxy/relay proxy/admin proxy
PROXY_OBJECTS := $(call objects,$(filter-out proxy/main.c,$(call sources,$(PROXY_DIRS))))
SUPPORT_OBJECTS := $(call objects,$(filter-out $(SUPPORT_MAINS),$(call sources,tests/support)))

PROGRAMS := $(if $(wildcard envd/main.c),$(B)/envd-bin) $(if $(filter-out static,$(PROFILE)),$(if $(wildcard proxy/main.c),$(B)/proxy-bin))

.PHONY: all
all: $(PROGRAMS)
	@:

$(B)/lib.a: $(LIB_OBJECTS)
$(B)/envd.a: $(ENVD_OBJECTS)
$(B)/proxy.a: $(PROXY_OBJECTS)
$(B)/%.a:
	@rm -f $@
	$(Q)ar rcs $@ $^

$(B)/envd-bin: $(B)/envd/main.o $(B)/envd.a $(B)/lib.a
$(B)/proxy-bin: $(B)/proxy/main.o $(B)/proxy.a $(B)/lib.a
$(B)/%-bin:
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# A change of flags rebuilds everything.
FLAGS_TEXT := $(CC) $(CPPFLAGS) $(CFLAGS)
$(shell mkdir -p $(B); echo '$(FLAGS_TEXT)' | cmp -s - $(B)/flags || echo '$(FLAGS_TEXT)' > $(B)/flags)

Q := $(if $(V),,@)

$(B)/%.o: %.c $(B)/flags $(PREREQUISITES) | $(PROTO_H)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/llhttp/%.o: /usr/share/llhttp/%.c $(B)/flags $(PREREQUISITES)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -w -DLLHTTP_STRICT_MODE=1 -c -o $@ $<

$(B)/proto/%.pb-c.o $(B)/google/%.pb-c.o: CFLAGS += -w
$(B)/%.pb-c.o: $(B)/%.pb-c.c $(B)/flags $(PREREQUISITES) | $(PROTO_H)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/proto/%.pb-c.c $(B)/proto/%.pb-c.h &: proto/%.proto
	@mkdir -p $(B)
	$(Q)protoc-c -I. -I/usr/include --c_out=$(B) $<
$(B)/google/protobuf/timestamp.pb-c.c $(B)/google/protobuf/timestamp.pb-c.h &:
	@mkdir -p $(B)
	$(Q)protoc-c -I/usr/include --c_out=$(B) google/protobuf/timestamp.proto

# Unit, loop and spawn tests: one program per tests/unit/**/test_*.c, cmocka.
UNIT_SOURCES := $(shell find tests/unit -name 'test_*.c' 2>/dev/null | sort)
UNIT_PROGRAMS := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SOURCES))
$(B)/support.a: $(SUPPORT_OBJECTS)
$(B)/tests/unit/lib/%: $(B)/tests/unit/lib/%.o $(B)/support.a $(B)/lib.a
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(B)/tests/unit/envd/%: $(B)/tests/unit/envd/%.o $(B)/support.a $(B)/envd.a $(B)/lib.a
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(B)/tests/unit/proxy/%: $(B)/tests/unit/proxy/%.o $(B)/support.a $(B)/proxy.a $(B)/lib.a
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

.PHONY: unit
unit: $(UNIT_PROGRAMS)
	@for t in $(UNIT_PROGRAMS); do echo "== $$t"; $$t || exit 1; done

.PHONY: static
static:
	$(MAKE) PROFILE=static all

.PHONY: clean
clean:
	rm -rf $(OUT)

-include $(shell find $(B) -name '*.d' 2>/dev/null)
.SECONDARY:
