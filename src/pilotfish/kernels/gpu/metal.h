// What Metal and CUDA call differently, in Metal.
#define DEVICE device
#define THREAD thread
#define CONSTANT constant
typedef ulong u64;
