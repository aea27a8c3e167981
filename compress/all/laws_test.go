package all_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/compress/compresstest"
)

// linear are the methods whose payloads are all-reduced: for them the mean of payloads is the payload of the mean.
var linear = map[string]bool{"dense": true, "fp16": true, "bf16": true, "powersgd": true}

// TestLaws runs the laws on every method that is registered, with its defaults; each method's own tests go further.
func TestLaws(t *testing.T) {
	for _, name := range all.Methods().Names() {
		m, err := all.Methods().Parse(name)
		require.NoError(t, err)
		t.Run(name, func(t *testing.T) {
			compresstest.Run(t, compresstest.Law{New: m.New, Linear: linear[name], Variant: true})
		})
	}
}
