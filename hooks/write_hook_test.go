package hooks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport/inproc"
)

// mean is a hook that averages every bucket with one all-reduce, on a goroutine of its own while backward goes on.
type mean struct {
	group  collective.Group
	stream kernels.Stream
	queue  chan *ddp.Bucket
}

func (h *mean) Plan(params []ddp.Param) ([]ddp.Class, error) {
	return make([]ddp.Class, len(params)), nil
}

func (h *mean) Bind(_ []ddp.Param, buckets []*ddp.Bucket) error {
	h.queue = make(chan *ddp.Bucket, len(buckets)) // Reduce must not block
	go func() {
		for b := range h.queue {
			err := h.group.AllReduce(context.Background(), h.stream, b.Grad, collective.Reduction{Op: collective.Mean})
			b.Finish(errors.Join(err, h.stream.Sync(context.Background())))
		}
	}()
	return nil
}

func (h *mean) Reduce(b *ddp.Bucket) { h.queue <- b }

func Example_ownHook() {
	meshes := inproc.New(2)
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			stream, _ := kernels.CPU().NewStream()
			r, err := ddp.New([]ddp.Param{{Name: "w", Shape: []int{2}}}, &mean{group: collective.New(meshes[rank]), stream: stream}, ddp.Config{Dev: kernels.CPU()})
			if err != nil {
				panic(err)
			}
			gradient, _ := kernels.Host(r.Grad(0))
			gradient[0], gradient[1] = float32(rank), 5
			if err := errors.Join(r.Ready(0), r.Wait(context.Background())); err != nil || rank == 0 {
				fmt.Println(gradient, err)
			}
		})
	}
	ranks.Wait()
	// Output: [0.5 5] <nil>
}
