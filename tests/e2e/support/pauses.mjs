// The two reasons for which a test lets time pass. Who waits for something to happen asks for it instead (`eventually`,
// `within` and `rests` of programs.mjs). packaging/lint.py refuses timers anywhere else.
const pass = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// The time is the subject: nothing may happen in it, or what happens in it is counted.
export const quietFor = pass;

// A client or server of the test's own is slow, late, or leaves at a moment of its choice.
export const pace = pass;
