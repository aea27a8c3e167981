package shapes_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/eval/model"
	"github.com/gradpress/gradpress/eval/shapes"
)

// Totals are those that torchvision and OpenAI publish, and for the others sums by hand from the papers' sizes.
func TestTotals(t *testing.T) {
	want := map[string]int{
		"alexnet": 61_100_840, "vgg16": 138_357_544, "resnet50": 25_557_032,
		// 16*27 + 18*2*2304 + (4608+9216) + 17*2*9216 + (18432+36864) + 17*2*36864, two norm values a channel, 650 of the classifier
		"resnet110":  432 + 82_944 + 13_824 + 313_344 + 55_296 + 1_253_376 + 2*(16+36*(16+32+64)) + 650,
		"ptb-lstm":   2*15_000_000 + 10_000 + 2*(2*9_000_000+6000),
		"deepspeech": 122_169_968, "gpt2": 124_439_808,
	}
	all := shapes.All()
	require.Len(t, all, len(want))
	for _, m := range all {
		require.Equal(t, want[m.Name], m.Len(), m.Name)
		found, err := shapes.Find(m.Name)
		require.NoError(t, err)
		require.Equal(t, m, found)
		set := compress.Set{Size: 1}
		for _, x := range m.Tensors {
			set.Parts = append(set.Parts, compress.NewPart(x.Name, x.Shape...))
		}
		require.NoError(t, set.Check(), "names must be usable side by side")
	}
	_, err := shapes.Find("alexnet2")
	require.ErrorContains(t, err, `"alexnet2"`)
	require.ErrorContains(t, err, "gpt2")
}

// The sizes that the DGC paper prints are MiB of these models, but for small differences that the comments name.
func TestPaperSizes(t *testing.T) {
	mib := func(params int) float64 { return float64(params) * 4 / (1 << 20) }
	require.InDelta(t, 97.49, mib(shapes.ResNet50().Len()), 0.005)
	require.InDelta(t, 194.68, mib(shapes.PTBLSTM().Len()-15_000_000+2*6000), 0.005, "tied, two biases")
	require.InDelta(t, 488.08, float64(shapes.DeepSpeech().Len())*4/1e6, 1, "MB here")
}

// The networks that eval trains have the shapes listed here.
func TestEqualsTrainedModels(t *testing.T) {
	net, err := model.NewResNet(110, 10, 3, 32, 1)
	require.NoError(t, err)
	var got []shapes.Tensor
	for _, p := range net.Params() {
		got = append(got, shapes.Tensor{Name: p.Name, Shape: p.Shape})
	}
	require.Equal(t, shapes.ResNet110().Tensors, got)

	lstm, err := model.NewLSTM(model.LSTMConfig{Vocab: 20, Embed: 3, Hidden: 3, Layers: 2}, 1)
	require.NoError(t, err)
	tensors := shapes.PTBLSTM().Tensors
	require.Len(t, lstm.Params(), len(tensors))
	for i, p := range lstm.Params() {
		require.Equal(t, tensors[i].Name, p.Name)
		shape := make([]int, len(p.Shape))
		for d, size := range p.Shape {
			shape[d] = map[int]int{20: 10_000, 3: 1500, 12: 6000}[size]
		}
		require.Equal(t, tensors[i].Shape, shape, p.Name)
	}
}
