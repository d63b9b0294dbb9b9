# One makefile for everything; README.md says what to read next.
#
#help Programs:  make [PROFILE=dev|clang|asan|opt|cover]   build/<profile>/bin: envd, proxy, sandbox
#help            make static                               build/static/bin/envd, as shipped (musl, no libraries)
#help Use:       make run [ONCE=1]     install what is missing, start proxy and sandbox, take the tour
#help            make check            after an edit, three minutes: lint, build, unit tests, the main ones of the others
#help            make test             install what is missing, pass the whole suite
#help            make test-only        the suite without installing; SUITES="lint unit" picks some
#help Parts:     make unit [ONLY=lib/test_buf]    unit, loop and spawn tests (PROFILE=asan: under sanitizers)
#help            make fuzz [SECS=30]   explore with every fuzzer; make fuzz-replay runs the corpora once
#help            make vm               envd as process 1 of virtual machines (QEMU, no rights needed)
#help            make lint             what each folder includes and their order, banned calls, stand-alone headers, scripts
#help            make bench            size, speed and memory beside programs from Debian: one table
#help            make coverage-map     which numbered cases have no test yet (NUMBERS="case:1-22,24 s:1-9")
#help            make limits           every number a peer can push on, every wait on a peer, and whose it is
#help            make analyze          clang's analyzer and bug patterns
#help            make format           lay the C out as .clang-format says; lint checks it
#help            make size             lines of each folder, and how large the programs are as shipped
#help            make deps             what `make test` installs, and the programs that `make bench` compares with
#help            make clean            remove all builds
#help Always:    V=1 shows commands; OUT=FOLDER builds there instead of in build/
#
# Layout of build/: <profile>/bin, <profile>/obj (objects and dependency files), <profile>/gen (C made
# from .proto), <profile>/tests (test programs), <profile>/*.a; musl/ (libraries for the static envd);
# logs/ (one file per suite).

, := ,
PROFILE ?= dev
OUT ?= build
B := $(OUT)/$(PROFILE)
O := $(B)/obj
G := $(B)/gen
Q := $(if $(V),,@)

PROFILES := dev clang asan opt cover static fuzz
ifeq ($(filter $(PROFILE),$(PROFILES)),)
$(error PROFILE is one of: $(PROFILES))
endif
CC_dev := gcc
CC_clang := clang
CC_asan := gcc
CC_opt := gcc
CC_cover := gcc
CC_static := musl-gcc
CC_fuzz := clang
ifeq ($(origin CC),default)
CC := $(CC_$(PROFILE))
endif

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef \
	-Wswitch-enum -Wpointer-arith -Wwrite-strings -Wimplicit-fallthrough -Wno-unused-parameter \
	-Wno-missing-field-initializers
ifdef CI
WARNINGS += -Werror
endif
CFLAGS_dev := -O1 -g
CFLAGS_clang := -O1 -g
CFLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_opt := -O2 -g -fstack-protector-strong -fPIE
CFLAGS_cover := -O0 -g --coverage
CFLAGS_static := -Os -g -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables \
	-fstack-protector-strong -fno-pie
CFLAGS_fuzz := -O1 -g -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer
CPPFLAGS_opt := -D_FORTIFY_SOURCE=2
LDFLAGS_asan := -fsanitize=address,undefined
LDFLAGS_fuzz := -fsanitize=address,undefined
LDFLAGS_opt := -pie -Wl,-z,relro,-z,now
LDFLAGS_cover := --coverage
LDFLAGS_static := -static -no-pie -Wl,--gc-sections

VERSION := 0.1.0

CPPFLAGS += -D_GNU_SOURCE -I. -I$(G) $(CPPFLAGS_$(PROFILE))
CFLAGS += -std=gnu11 $(WARNINGS) $(CFLAGS_$(PROFILE)) $(EXTRA_CFLAGS)
LDFLAGS += $(LDFLAGS_$(PROFILE))

# llhttp: Debian 13 has a library; Debian 12's node-llhttp brings the generated C, to be compiled in
# its strict mode (the default build of that file is the lenient one).
ifneq ($(wildcard /usr/share/llhttp/llhttp.c),)
CPPFLAGS += -I/usr/share/include/llhttp
LLHTTP_OBJECTS := $(patsubst %,$(O)/llhttp/%.o,api http llhttp)
else
LLHTTP_LIBRARY := $(shell pkg-config --variable=libdir libllhttp 2>/dev/null)/libllhttp.a
endif

ifeq ($(PROFILE),static)
MUSL := $(OUT)/musl
CPPFLAGS += -isystem $(MUSL)/include
LDLIBS := $(LLHTTP_LIBRARY) $(MUSL)/lib/libuv.a $(MUSL)/lib/libjansson.a $(MUSL)/lib/libprotobuf-c.a \
	$(MUSL)/lib/libz.a $(MUSL)/lib/libsodium.a -lpthread -lm
PREREQUISITES := $(MUSL)/.ready
else
LDLIBS := $(LLHTTP_LIBRARY) -luv -ljansson -lprotobuf-c -lz -lsodium -lpthread -lm
endif
# OpenSSL comes with lib/tls, which envd never links.
TLS_LDLIBS := -lssl -lcrypto
PROXY_LDLIBS := $(TLS_LDLIBS) -lnghttp2 -lhiredis -lcares

sources = $(sort $(foreach dir,$(1),$(wildcard $(dir)/*.c)))
objects = $(patsubst %.c,$(O)/%.o,$(1))

PROTOS := $(wildcard proto/*.proto)
PROTO_C := $(PROTOS:%.proto=$(G)/%.pb-c.c) $(G)/google/protobuf/timestamp.pb-c.c
PROTO_H := $(PROTO_C:.c=.h)
PROTO_OBJECTS := $(PROTO_C:$(G)/%.c=$(O)/%.o)
GENERATED := $(PROTO_H) $(G)/build_info.h

LIB_OBJECTS := $(call objects,$(call sources,lib lib/process)) $(LLHTTP_OBJECTS)
TLS_OBJECTS := $(call objects,$(call sources,lib/tls))
ENVD_DIRS := envd/rpc envd/init envd/gate envd/snapshot envd/forward envd/boot envd/filesystem envd/process \
	envd/jobs envd/watch envd/host envd
WATCHER_SOURCES := $(wildcard envd/watch/watcher_*.c)
# The keeper of background jobs: a program without libc, and so without any profile's flags. envd carries it
# inside itself.
KEEPER_SOURCE := envd/jobs/keeper_main.c
ENVD_OBJECTS := $(call objects,$(filter-out envd/main.c $(KEEPER_SOURCE) $(WATCHER_SOURCES),$(call sources,$(ENVD_DIRS)))) \
	$(PROTO_OBJECTS)
CLI_OBJECTS := $(call objects,$(filter-out envd/cli/main.c,$(call sources,envd/cli)))
# envd-watch is a program of its own, because libinotifytools is under the GPL and envd is not. What of it
# does not touch the library is an archive, for the tests.
WATCHER_LIBRARY := envd/watch/watcher_inotify.c
WATCHER_SHARED := envd/watch/watch_record.c envd/watch/watch_mount.c lib/base.c lib/buf.c
WATCHER_OBJECTS := $(call objects,$(filter-out $(WATCHER_LIBRARY) %_main.c,$(WATCHER_SOURCES)))
PROXY_DIRS := proxy/route proxy/catalog proxy/sources proxy/wake proxy/front proxy/relay proxy/admin proxy
PROXY_OBJECTS := $(call objects,$(filter-out proxy/main.c,$(call sources,$(PROXY_DIRS))))

PROGRAMS := $(if $(wildcard envd/main.c),$(B)/bin/envd) $(B)/bin/envd-watch \
	$(if $(filter-out static,$(PROFILE)),$(B)/bin/sandbox $(if $(wildcard proxy/main.c),$(B)/bin/proxy))

.PHONY: all
all: $(PROGRAMS)
	@:

$(B)/lib.a: $(LIB_OBJECTS)
$(B)/tls.a: $(TLS_OBJECTS)
$(B)/envd.a: $(ENVD_OBJECTS)
$(B)/cli.a: $(CLI_OBJECTS)
$(B)/watcher.a: $(WATCHER_OBJECTS)
$(B)/proxy.a: $(PROXY_OBJECTS)
$(B)/%.a:
	@mkdir -p $(@D); rm -f $@
	$(Q)ar rcs $@ $^

KEEPER_FLAGS := -D_GNU_SOURCE -I. -std=gnu11 $(WARNINGS) -Os -ffreestanding -fno-builtin -fno-stack-protector \
	-fno-pie -fno-unwind-tables -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns -Werror=frame-larger-than=1024
$(G)/keeper: $(KEEPER_SOURCE) envd/jobs/job_status.h lib/process/raw_call.h $(B)/flags
	@mkdir -p $(@D)
	$(Q)gcc $(KEEPER_FLAGS) -nostdlib -static -no-pie -Wl,--build-id=none -Wl,-z,noseparate-code -o $@ $<
	$(Q)strip -R .comment -R .note.gnu.property $@
$(O)/envd/jobs/keeper_image.o: CFLAGS += -DKEEPER_PATH='"$(G)/keeper"'
$(O)/envd/jobs/keeper_image.o: $(G)/keeper

$(B)/bin/envd: $(O)/envd/main.o $(B)/envd.a $(B)/lib.a
$(B)/bin/proxy: LDLIBS := $(PROXY_LDLIBS) $(LDLIBS)
$(B)/bin/proxy: $(O)/proxy/main.o $(B)/proxy.a $(B)/tls.a $(B)/lib.a
$(B)/bin/sandbox: LDLIBS := $(TLS_LDLIBS) $(LDLIBS)
$(B)/bin/sandbox: $(O)/envd/cli/main.o $(B)/cli.a $(B)/tls.a $(B)/envd.a $(B)/lib.a
ifeq ($(PROFILE),static)
# One process a watch: no page more than it needs. (Assertions would bring stdio with them.) Where there is no
# libinotifytools for musl, Debian's own needs glibc.
WATCHER_FLAGS := -D_GNU_SOURCE -DNDEBUG -I. -std=gnu11 $(WARNINGS) $(CFLAGS_static) $(LDFLAGS_static) \
	-Wl,-z,noseparate-code -Wl,-z,norelro -Wl,--sort-section=name
$(B)/bin/envd-watch: $(WATCHER_SOURCES) $(WATCHER_SHARED) $(wildcard envd/watch/*.h lib/*.h) $(B)/flags $(MUSL)/.ready
	@mkdir -p $(@D)
	$(Q)if [ -e $(MUSL)/lib/libinotifytools.a ]; then with="$(CC) -isystem $(MUSL)/include -L$(MUSL)/lib"; else with=gcc; fi; \
		$$with $(WATCHER_FLAGS) -o $@.debug $(WATCHER_SOURCES) $(WATCHER_SHARED) -linotifytools
	$(Q)strip -o $@ $@.debug
$(B)/bin/%:
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@.debug $^ $(LDLIBS)
	$(Q)strip -o $@ $@.debug
else
# Under sanitizers it keeps its standard error (tests/support/reports.c).
$(B)/bin/envd-watch: $(call objects,$(WATCHER_SOURCES) $(WATCHER_SHARED) $(if $(filter asan,$(PROFILE)),tests/support/reports.c))
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(if $(filter asan,$(PROFILE)),-Wl$(,)--wrap=dup2) -o $@ $^ -linotifytools
$(B)/bin/%:
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
endif

# A change of flags rebuilds everything; not whether warnings are errors, so that `make` and the tests share a build.
FLAGS_TEXT := $(CC) $(CPPFLAGS) $(filter-out -Werror,$(CFLAGS)) $(LDFLAGS)
$(shell mkdir -p $(G); echo '$(FLAGS_TEXT)' | cmp -s - $(B)/flags || echo '$(FLAGS_TEXT)' > $(B)/flags)

# BUILD_VERSION, BUILD_COMMIT and BUILD_PROFILE; only what includes "build_info.h" is rebuilt after a commit.
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
BUILD_INFO := printf '\#define %s "%s"\n' BUILD_VERSION '$(VERSION)' BUILD_COMMIT '$(COMMIT)' \
	BUILD_PROFILE '$(PROFILE)'
$(shell $(BUILD_INFO) | cmp -s - $(G)/build_info.h || $(BUILD_INFO) > $(G)/build_info.h)

$(O)/%.o: %.c $(B)/flags $(PREREQUISITES) | $(GENERATED)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(O)/llhttp/%.o: /usr/share/llhttp/%.c $(B)/flags $(PREREQUISITES)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -w -DLLHTTP_STRICT_MODE=1 -c -o $@ $<

$(PROTO_OBJECTS): CFLAGS += -w
$(O)/%.pb-c.o: $(G)/%.pb-c.c $(B)/flags $(PREREQUISITES) | $(GENERATED)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(G)/proto/%.pb-c.c $(G)/proto/%.pb-c.h &: proto/%.proto
	@mkdir -p $(G)
	$(Q)protoc-c -I. -I/usr/include --c_out=$(G) $<
$(G)/google/protobuf/timestamp.pb-c.c $(G)/google/protobuf/timestamp.pb-c.h &:
	@mkdir -p $(G)
	$(Q)protoc-c -I/usr/include --c_out=$(G) google/protobuf/timestamp.proto

# Unit, loop and spawn tests: one cmocka program per tests/unit/**/test_*.c. Helpers they share are
# tests/support/*.c; a helper with a main of its own becomes the program build/<profile>/tests/support/<name>.
SUPPORT_MAINS := $(shell grep -lw '^int main' tests/support/*.c 2>/dev/null)
SUPPORT_OBJECTS := $(call objects,$(filter-out $(SUPPORT_MAINS),$(call sources,tests/support)))
SUPPORT_PROGRAMS := $(patsubst tests/%.c,$(B)/tests/%,$(SUPPORT_MAINS))
UNIT_SOURCES := $(shell find tests/unit tests/wire -name 'test_*.c' 2>/dev/null | sort)
ifdef ONLY
UNIT_SOURCES := $(foreach name,$(ONLY),$(filter %/$(name).c,$(UNIT_SOURCES)))
endif
UNIT_PROGRAMS := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SOURCES))
$(B)/support.a: $(SUPPORT_OBJECTS)
# In every test program: allocations can be refused (torture.h), valgrind is asked for leaks (valgrind.h).
TORTURE := $(patsubst %,$(O)/tests/support/%.o,torture valgrind)
WRAP := $(foreach name,malloc calloc realloc xmalloc xcalloc xrealloc xstrdup xstrndup,-Wl,--wrap=$(name))
LINK_TEST = @mkdir -p $(@D); $(if $(V),set -x;) $(CC) $(LDFLAGS) $(WRAP) -o $@ $^ -lcmocka $(LDLIBS)
$(B)/tests/unit/lib/%: $(O)/tests/unit/lib/%.o $(TORTURE) $(B)/support.a $(B)/lib.a
	$(LINK_TEST)
$(B)/tests/unit/lib/tls/%: LDLIBS := $(TLS_LDLIBS) $(LDLIBS)
$(B)/tests/unit/lib/tls/%: $(O)/tests/unit/lib/tls/%.o $(TORTURE) $(B)/support.a $(B)/tls.a $(B)/lib.a
	$(LINK_TEST)
$(B)/tests/wire/%: $(O)/tests/wire/%.o $(TORTURE) $(B)/support.a $(B)/lib.a
	$(LINK_TEST)
$(B)/tests/unit/envd/watch/%: $(O)/tests/unit/envd/watch/%.o $(TORTURE) $(B)/support.a $(B)/watcher.a $(B)/envd.a \
		$(B)/lib.a
	$(LINK_TEST)
$(B)/tests/unit/envd/cli/%: LDLIBS := $(TLS_LDLIBS) $(LDLIBS)
$(B)/tests/unit/envd/cli/%: $(O)/tests/unit/envd/cli/%.o $(TORTURE) $(B)/support.a $(B)/cli.a $(B)/tls.a $(B)/envd.a \
		$(B)/lib.a
	$(LINK_TEST)
$(B)/tests/unit/envd/%: $(O)/tests/unit/envd/%.o $(TORTURE) $(B)/support.a $(B)/envd.a $(B)/lib.a
	$(LINK_TEST)
$(B)/tests/unit/proxy/%: LDLIBS := $(PROXY_LDLIBS) $(LDLIBS)
$(B)/tests/unit/proxy/%: $(O)/tests/unit/proxy/%.o $(TORTURE) $(B)/support.a $(B)/proxy.a $(B)/tls.a $(B)/lib.a
	$(LINK_TEST)
$(B)/tests/support/%: $(O)/tests/support/%.o $(B)/lib.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: unit unit-build
unit-build: $(UNIT_PROGRAMS) $(SUPPORT_PROGRAMS)
	@:
unit: unit-build
	@failed=; for t in $(UNIT_PROGRAMS); do echo "== $$t"; $$t || failed="$$failed $$t"; done; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed"; exit 1; fi

.PHONY: static
static:
	@$(MAKE) --no-print-directory PROFILE=static all
$(OUT)/musl/.ready: packaging/musl-deps.sh
	$(Q)packaging/musl-deps.sh $(OUT)/musl

.PHONY: deps size
deps:
	packaging/setup.sh
size:
	@packaging/size.py $(OUT)

.PHONY: check test test-only run vm lint limits format analyze coverage-map
check:
	@tests/run.py check
test:
	@packaging/setup.sh build client check vm
	@$(MAKE) --no-print-directory test-only
test-only:
	@tests/run.py $(SUITES)
run:
	@packaging/setup.sh build client
	@packaging/run.sh
vm:
	@packaging/setup.sh build client vm >/dev/null
	@$(MAKE) --no-print-directory -s static
	@tests/vm/run.sh
lint: $(GENERATED)
	@packaging/lint.py
limits:
	@packaging/limits.py
format:
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs packaging/clang-format.sh -i
coverage-map:
	@tests/coverage-map.py $(NUMBERS)
# The analyzer does not see through the intrusive lists, nor into other files; read its findings.
TIDY := -*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling,bugprone-*$(foreach \
	name,easily-swappable-parameters reserved-identifier branch-clone narrowing-conversions sizeof-expression \
	assignment-in-if-condition implicit-widening-of-multiplication-result,$(,)-bugprone-$(name))
analyze: $(GENERATED)
	@printf '%s\n' $(call sources,lib lib/process lib/tls $(ENVD_DIRS) envd/cli $(PROXY_DIRS)) | xargs -P 2 -n 5 sh -c \
		'clang-tidy --quiet --checks="$(TIDY)" "$$@" -- $(CPPFLAGS) -std=gnu11 2>/dev/null' sh | \
		grep -E 'warning:|error:' | sort -u

# Fuzzers: one libFuzzer program per tests/fuzz/fuzz_*.c; its corpus is tests/fuzz/corpus/<name>/.
FUZZ_SOURCES := $(call sources,tests/fuzz)
FUZZ_PROGRAMS := $(patsubst tests/fuzz/%.c,$(B)/tests/fuzz/%,$(FUZZ_SOURCES))
SECS ?= 30
.PHONY: fuzz fuzz-build fuzz-replay
ifeq ($(PROFILE),fuzz)
FUZZ_ARCHIVES := $(B)/support.a $(B)/cli.a $(B)/envd.a $(if $(PROXY_OBJECTS),$(B)/proxy.a) $(B)/tls.a $(B)/lib.a
$(B)/tests/fuzz/%: $(O)/tests/fuzz/%.o $(FUZZ_ARCHIVES)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ -lcmocka $(PROXY_LDLIBS) $(LDLIBS)
fuzz-build: $(FUZZ_PROGRAMS)
	@:
fuzz: $(FUZZ_PROGRAMS)
	@for t in $(FUZZ_PROGRAMS); do name=$${t##*/}; echo "== $$name"; \
		mkdir -p $(B)/found/$$name tests/fuzz/corpus/$$name; \
		$$t -max_total_time=$(SECS) -timeout=10 -rss_limit_mb=4096 -artifact_prefix=$(B)/found/$$name/ \
			-print_final_stats=1 $(B)/found/$$name tests/fuzz/corpus/$$name 2>&1 | \
			grep -E 'ERROR|SUMMARY|stat::number_of_executed|stat::new_units|Test unit written|runtime error'; \
	done
else
fuzz fuzz-build:
	@$(MAKE) --no-print-directory PROFILE=fuzz $@
endif
fuzz-replay:
	@tests/run.py fuzz

# The server that Connect's conformance runner tests (tests/conformance/install.sh brings the .proto files).
CONFORMANCE_PROTO := $(OUT)/conformance/proto/conformance
CONFORMANCE_C := $(patsubst %,$(G)/conformance/%.pb-c.c,config service server_compat)
CONFORMANCE_OBJECTS := $(CONFORMANCE_C:$(G)/%.c=$(O)/%.o)
$(CONFORMANCE_OBJECTS): CFLAGS += -w
$(CONFORMANCE_OBJECTS): | $(CONFORMANCE_C)
# The JSON names of the fields that stand for google.protobuf.Any.
$(G)/conformance/%.pb-c.c: $(CONFORMANCE_PROTO)/%.proto
	@mkdir -p $(@D)
	$(Q)protoc-c -I$(OUT)/conformance/proto --c_out=$(G) $<
	$(Q)sed -i -e 's/^    "type_url"/    "@type"/' -e 's/^    "stream_definition"/    "response_definition"/' $@
$(B)/tests/conformance/server: tests/conformance/server.c tests/conformance/limits.h $(call sources,envd/rpc) \
		$(CONFORMANCE_OBJECTS) $(PROTO_OBJECTS) $(B)/lib.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -include tests/conformance/limits.h $(LDFLAGS) -o $@ \
		$(filter %.c,$^) $(CONFORMANCE_OBJECTS) $(filter %timestamp.pb-c.o,$^) $(B)/lib.a $(LDLIBS)

# Programs that measure; built as shipped.
BENCH_PROGRAMS := $(patsubst tests/bench/%.c,$(B)/bench/%,$(call sources,tests/bench))
$(B)/bench/%: $(O)/tests/bench/%.o $(B)/envd.a $(B)/lib.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
.PHONY: bench bench-build
bench-build: $(BENCH_PROGRAMS)
	@:
bench:
	@packaging/setup.sh build bench >/dev/null
	@$(MAKE) --no-print-directory -s static
	@$(MAKE) --no-print-directory -s PROFILE=opt all bench-build
	@tests/bench/run.py $(PARTS)

print-%:
	@echo '$($*)'

.PHONY: clean help
clean:
	rm -rf $(OUT)
help:
	@sed -n 's/^#help //p' Makefile

-include $(shell find $(O) -name '*.d' 2>/dev/null)
.SECONDARY:
.DELETE_ON_ERROR:
