/*
 * System calls without libc, for code that runs where libc cannot be called: between the clone and
 * the exec (child.c), and in programs that have no libc (envd/jobs/keeper_main.c). A failure is a
 * negative errno. Includes nothing but the compiler's own headers.
 */
#ifndef LIB_PROCESS_RAW_CALL_H
#define LIB_PROCESS_RAW_CALL_H

/* No instrumentation of any kind: its runtime takes locks and touches memory that is not ours. */
#define RAW_CODE \
	__attribute__((no_sanitize("address"), no_sanitize("undefined"), no_stack_protector, \
		       no_profile_instrument_function))

RAW_CODE static inline long raw6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#else
#error "the raw system call of this architecture is not written yet"
#endif
}

#define raw5(n, a, b, c, d, e) raw6((n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define raw4(n, a, b, c, d) raw5((n), (a), (b), (c), (d), 0)
#define raw3(n, a, b, c) raw4((n), (a), (b), (c), 0)
#define raw2(n, a, b) raw3((n), (a), (b), 0)
#define raw1(n, a) raw2((n), (a), 0)
#define raw0(n) raw1((n), 0)

#endif
