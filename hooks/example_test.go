package hooks_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/ddp"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/transport/inproc"
)

// Two ranks average a gradient of 1000 entries, of which each sends its largest two.
func Example() {
	ctx := context.Background()
	method, err := all.Methods().Parse("topk:ratio=0.002")
	if err != nil {
		panic(err)
	}
	params := []ddp.Param{{Name: "layer.weight", Shape: []int{10, 100}}}
	data, control := inproc.New(2), inproc.New(2) // over a network: tcp.Dial
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			engine, err := hooks.Compressed(ctx, hooks.Config{Dev: kernels.CPU(), Data: collective.New(data[rank]), Control: collective.New(control[rank])}, method)
			if err != nil {
				panic(err)
			}
			defer engine.Close()
			reducer, err := ddp.New(params, engine, ddp.Config{Dev: kernels.CPU()})
			if err != nil {
				panic(err)
			}
			gradient, _ := kernels.Host(reducer.Grad(0)) // backward adds to it
			gradient[7], gradient[100+rank], gradient[500] = 3, 2, 0.5
			if err := reducer.Ready(0); err != nil { // final: the exchange begins
				panic(err)
			}
			if err := reducer.Wait(ctx); err != nil {
				panic(err)
			}
			if rank == 0 {
				fmt.Println("mean:", gradient[7], gradient[100], gradient[101], gradient[500])
				fmt.Printf("sent %d bytes instead of %d\n", engine.Stats().PayloadBytes, engine.Stats().DenseBytes)
			}
		})
	}
	ranks.Wait()
	// Output:
	// mean: 3 1 1 0
	// sent 13 bytes instead of 4000
}
