package kernels

import (
	"context"
	"slices"
)

// Lazy returns the device for tests: the CPU's loops on memory that the host cannot see, and nothing runs before Sync. Code that
// forgets a Sync or reaches into memory works on the CPU by luck and fails here, as it would on a GPU.
func Lazy() Device { return &lazy{} }

// FailAfter returns a Lazy device whose streams fail with err once they have run n pieces of work.
func FailAfter(n int, err error) Device { return &lazy{fail: err, after: n} }

type lazy struct {
	fail  error
	after int
}

func (*lazy) Name() string                 { return "lazy" }
func (*lazy) Alloc(bytes int) (Mem, error) { return hostAlloc(bytes, true) }
func (*lazy) Close() error                 { return nil }
func (d *lazy) NewStream() (Stream, error) { return &lazyStream{dev: d}, nil }

// lazyStream queues closures, which allocate: it is for tests, where order matters and speed does not.
type lazyStream struct {
	dev   *lazy
	queue []func(c *cpuStream)
	cpu   cpuStream
	done  int
	err   error
}

func (s *lazyStream) Device() Device { return s.dev }

func (s *lazyStream) Launch(k Kernel) { s.push(func(c *cpuStream) { c.Launch(k) }) }

func (s *lazyStream) Copy(dst, src Mem, d, o, n int) {
	s.push(func(c *cpuStream) { c.Copy(dst, src, d, o, n) })
}

func (s *lazyStream) Upload(dst Mem, d int, src []byte) {
	src = slices.Clone(src)
	s.push(func(c *cpuStream) { c.Upload(dst, d, src) })
}

func (s *lazyStream) Download(dst []byte, src Mem, o int) {
	s.push(func(c *cpuStream) { c.Download(dst, src, o) })
}

func (s *lazyStream) push(f func(*cpuStream)) { s.queue = append(s.queue, f) }

func (s *lazyStream) Sync(ctx context.Context) error {
	for _, f := range s.queue {
		if s.dev.fail != nil && s.done >= s.dev.after {
			s.err = s.dev.fail
		}
		if s.err != nil {
			break
		}
		f(&s.cpu)
		s.done++
	}
	s.queue = s.queue[:0]
	if s.err != nil {
		return s.err
	}
	return ctx.Err()
}
