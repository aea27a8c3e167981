// Package ddp stands between a backward pass and the exchange of gradients: a Reducer puts parameters into buckets, and hands each
// bucket to a Hook as soon as its gradients are final, while the backward pass goes on (Li et al., "PyTorch Distributed", VLDB 2020).
package ddp

import (
	"context"
	"fmt"
	"slices"

	"github.com/gradpress/gradpress/kernels"
)

// Param is one trainable tensor. Shape is row-major.
type Param struct {
	Name  string
	Shape []int
}

// Len is the number of elements.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Class is what a hook wants of a parameter's place: parameters of one class lie next to each other in a bucket, and those of a
// class that is Together share one bucket whatever its size.
type Class struct {
	Name     string
	Together bool
}

// Hook replaces the gradients of a bucket by their mean over ranks. Its methods are called from one goroutine.
type Hook interface {
	// Plan says which class each parameter belongs to, before the layout is made.
	Plan(params []Param) ([]Class, error)
	// Bind announces the layout, before the first step and whenever it changes.
	Bind(params []Param, buckets []*Bucket) error
	// Reduce begins the exchange of b and returns at once. It is called in bucket order on every rank. Finish is called on b when
	// its gradients hold the mean.
	Reduce(b *Bucket)
}

// Bucket is a run of gradients that are exchanged together.
type Bucket struct {
	Index int
	Grad  kernels.Buf[float32]
	Spans []Span // end to end, covering Grad

	missing int
	done    chan error // holds one result
}

// Span is the gradients of one class in a bucket, elements [Lo, Hi) of its Grad.
type Span struct {
	Class  string
	Params []int
	Lo, Hi int
}

// Finish tells the reducer that b's gradients hold the mean, or that they never will.
func (b *Bucket) Finish(err error) { b.done <- err }

// Config sets a Reducer.
type Config struct {
	Dev kernels.Device
	// BucketBytes is the size at which a bucket is full; a larger tensor has a bucket of its own. Default 25 MiB.
	BucketBytes int
}

// DefaultBucketBytes is PyTorch's.
const DefaultBucketBytes = 25 << 20

// Reducer averages the gradients of one model replica with those of the other ranks. One goroutine only.
type Reducer struct {
	params  []Param
	hook    Hook
	buckets []*Bucket
	home    []place // of each parameter
	ready   []bool
	next    int // bucket to launch
	nosync  bool
	err     error
}

type place struct{ bucket, lo, hi int }

// New lays the parameters out in buckets, in reverse order, since backward finishes the last ones first. All ranks must pass the
// same parameters.
func New(params []Param, h Hook, cfg Config) (*Reducer, error) {
	if cfg.BucketBytes == 0 {
		cfg.BucketBytes = DefaultBucketBytes
	}
	if cfg.BucketBytes < 0 {
		return nil, fmt.Errorf("ddp: bucket size %d, want more than 0 bytes", cfg.BucketBytes)
	}
	seen := map[string]bool{}
	for _, p := range params {
		if p.Name == "" || seen[p.Name] {
			return nil, fmt.Errorf("ddp: parameter name %q is empty or used twice", p.Name)
		}
		seen[p.Name] = true
	}
	r := &Reducer{params: params, hook: h, home: make([]place, len(params)), ready: make([]bool, len(params))}
	classes, err := h.Plan(params)
	if err != nil {
		return nil, err
	}
	if len(classes) != len(params) {
		panic(fmt.Sprintf("ddp: a plan of %d classes for %d parameters", len(classes), len(params)))
	}
	order := make([]int, len(params))
	for i := range order {
		order[i] = len(params) - 1 - i
	}
	for _, members := range assign(params, classes, order, cfg.BucketBytes) {
		if err := r.addBucket(members, classes, cfg.Dev); err != nil {
			return nil, err
		}
	}
	r.begin()
	return r, h.Bind(params, r.buckets)
}

// assign splits order into buckets of at most limit bytes, except that a class which is Together has one bucket, in the place of its last
// member.
func assign(params []Param, classes []Class, order []int, limit int) [][]int {
	together := map[string][]int{}
	last := map[string]int{}
	for _, i := range order {
		if c := classes[i]; c.Together {
			together[c.Name] = append(together[c.Name], i)
			last[c.Name] = i
		}
	}
	var buckets [][]int
	var open []int
	size := 0
	flush := func() {
		if len(open) > 0 {
			buckets = append(buckets, open)
			open, size = nil, 0
		}
	}
	for _, i := range order {
		if c := classes[i]; c.Together {
			if last[c.Name] == i {
				flush()
				buckets = append(buckets, together[c.Name])
			}
			continue
		}
		bytes := 4 * params[i].Len()
		if size+bytes > limit {
			flush()
		}
		open = append(open, i)
		size += bytes
	}
	flush()
	return buckets
}

func (r *Reducer) addBucket(members []int, classes []Class, dev kernels.Device) error {
	b := &Bucket{Index: len(r.buckets), done: make(chan error, 1)}
	var names []string
	for _, i := range members {
		if !slices.Contains(names, classes[i].Name) {
			names = append(names, classes[i].Name)
		}
	}
	n := 0
	for _, name := range names {
		span := Span{Class: name, Lo: n}
		for _, i := range members {
			if classes[i].Name == name {
				hi := n + r.params[i].Len()
				r.home[i] = place{b.Index, n, hi}
				span.Params = append(span.Params, i)
				n = hi
			}
		}
		span.Hi = n
		b.Spans = append(b.Spans, span)
	}
	var err error
	b.Grad, err = kernels.NewBuf[float32](dev, n)
	r.buckets = append(r.buckets, b)
	return err
}

// begin makes ready for the next step.
func (r *Reducer) begin() {
	clear(r.ready)
	r.next = 0
	for _, b := range r.buckets {
		b.missing = 0
		for _, s := range b.Spans {
			b.missing += len(s.Params)
		}
	}
}

// Grad is where the gradient of parameter i lives: a window on its bucket. Backward adds to it; whoever steps clears it.
func (r *Reducer) Grad(i int) kernels.Buf[float32] {
	p := r.home[i]
	return r.buckets[p.bucket].Grad.Slice(p.lo, p.hi)
}

// Buckets is the layout, in the order of exchange.
func (r *Reducer) Buckets() []*Bucket { return r.buckets }

// Ready says that gradient i is final. When that completes the next bucket in order, its exchange begins.
func (r *Reducer) Ready(i int) error {
	switch {
	case r.err != nil:
		return r.err
	case i < 0 || i >= len(r.params):
		panic(fmt.Sprintf("ddp: parameter %d of %d", i, len(r.params)))
	case r.nosync:
		return nil
	case r.ready[i]:
		return r.fail(fmt.Errorf("ddp: parameter %q is ready for the second time in one step", r.params[i].Name))
	}
	r.ready[i] = true
	r.buckets[r.home[i].bucket].missing--
	for r.next < len(r.buckets) && r.buckets[r.next].missing == 0 {
		r.hook.Reduce(r.buckets[r.next])
		r.next++
	}
	return nil
}

// Wait ends the step: it returns once all gradients hold the mean. A parameter that was never ready is an error that names it. After
// an error the reducer is dead.
func (r *Reducer) Wait(ctx context.Context) error {
	if r.err != nil {
		return r.err
	}
	var missing []string
	for i, ok := range r.ready {
		if !ok {
			missing = append(missing, r.params[i].Name)
		}
	}
	if len(missing) > 0 {
		return r.fail(fmt.Errorf("ddp: no gradient came for %q (%d of %d parameters)", missing[0], len(missing), len(r.params)))
	}
	for _, b := range r.buckets {
		select {
		case err := <-b.done:
			if err != nil {
				return r.fail(err)
			}
		case <-ctx.Done():
			return r.fail(ctx.Err())
		}
	}
	r.begin()
	return nil
}

func (r *Reducer) fail(err error) error {
	r.err = err
	return err
}

// NoSync runs f, in which gradients add up and are not exchanged.
func (r *Reducer) NoSync(f func() error) error {
	r.nosync = true
	defer func() { r.nosync = false }()
	return f()
}
