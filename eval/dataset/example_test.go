package dataset_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gradpress/gradpress/eval/dataset"
)

// Worker 1 of 4 trains on its share of the images, 16 at a time.
func ExampleSampler() {
	d, err := dataset.Glyphs(context.Background(), dataset.Options{Seed: 1, TrainLimit: 640})
	if err != nil {
		log.Fatal(err)
	}
	sampler, err := dataset.NewSampler(d.Train.Len(), 16, 1, 4, 1)
	if err != nil {
		log.Fatal(err)
	}
	x, y := make([]float32, 16*d.C*d.H*d.W), make([]int32, 16)
	for step := range sampler.Steps(3) { // three epochs
		d.Fill(x, y, d.Train, sampler.Batch(step), nil)
		// forward, backward, exchange, update
	}
	fmt.Println(sampler.Steps(3), "steps on", len(y), "of", d.Train.Len(), "images")
	// Output: 30 steps on 16 of 640 images
}
