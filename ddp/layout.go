package ddp

import (
	"slices"
	"time"

	"github.com/gradpress/gradpress/kernels"
)

// Bucket is a run of gradients that are exchanged together.
type Bucket struct {
	Index int
	Grad  kernels.Buf[float32]
	Spans []Span // end to end, covering Grad
	// Began and Filled are when the first and the last of its gradients became final in this step; zero where backward did not fill it.
	Began, Filled time.Time

	missing int
	done    chan error // holds one result
}

// Span is the gradients of one class in a bucket, elements [Lo, Hi) of its Grad.
type Span struct {
	Class  string
	Params []int
	Lo, Hi int
}

// NewBucket makes a bucket for a hook that drives another one on memory of its own.
func NewBucket(index int, grad kernels.Buf[float32], spans []Span) *Bucket {
	return &Bucket{Index: index, Grad: grad, Spans: spans, done: make(chan error, 1)}
}

// Finish tells the reducer that b's gradients hold the mean, or that they never will.
func (b *Bucket) Finish(err error) { b.done <- err }

// Done yields what Finish was called with, once a step.
func (b *Bucket) Done() <-chan error { return b.done }

// place is elements [lo, hi) of a bucket.
type place struct{ bucket, lo, hi int }

// plan is which parameters share a bucket, in the order of exchange; those of one class lie next to each other.
func plan(params []Param, classes []Class, order []int, first, limit int) [][]int {
	buckets := assign(params, classes, order, first, limit)
	for _, members := range buckets {
		var names []string
		for _, i := range members {
			if !slices.Contains(names, classes[i].Name) {
				names = append(names, classes[i].Name)
			}
		}
		slices.SortStableFunc(members, func(a, b int) int {
			return slices.Index(names, classes[a].Name) - slices.Index(names, classes[b].Name)
		})
	}
	return buckets
}

// assign splits order into buckets of at most limit bytes, the first one of at most first, except that a class which is Together has
// one bucket, in the place of its last member.
func assign(params []Param, classes []Class, order []int, first, limit int) [][]int {
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
	size, full := 0, first
	flush := func() {
		if len(open) > 0 {
			buckets = append(buckets, open)
			open, size, full = nil, 0, limit
		}
	}
	for _, i := range order {
		if c := classes[i]; c.Together {
			if last[c.Name] == i {
				flush()
				buckets = append(buckets, together[c.Name])
				full = limit
			}
			continue
		}
		bytes := 4 * params[i].Len()
		if size+bytes > full {
			flush()
		}
		open = append(open, i)
		size += bytes
	}
	flush()
	return buckets
}

// build allocates the buckets of a plan and says where each parameter lies.
func build(params []Param, classes []Class, members [][]int, dev kernels.Device) ([]*Bucket, []place, error) {
	buckets, home := make([]*Bucket, len(members)), make([]place, len(params))
	for k, list := range members {
		var spans []Span
		n := 0
		for _, i := range list {
			if len(spans) == 0 || spans[len(spans)-1].Class != classes[i].Name {
				spans = append(spans, Span{Class: classes[i].Name, Lo: n})
			}
			home[i] = place{k, n, n + params[i].Len()}
			n = home[i].hi
			span := &spans[len(spans)-1]
			span.Params, span.Hi = append(span.Params, i), n
		}
		grad, err := kernels.NewBuf[float32](dev, n)
		if err != nil {
			return nil, nil, err
		}
		buckets[k] = NewBucket(k, grad, spans)
	}
	return buckets, home, nil
}
