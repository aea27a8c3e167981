package shapes

import "fmt"

// PTBLSTM is the large word model of Zaremba et al. (2014): 10,000 words, two layers of 1500, one bias a gate, input and output
// embeddings not tied: 66,022,000 parameters. The DGC paper's 194.68 MiB is the same with tied embeddings and two biases a gate.
func PTBLSTM() Model {
	const words, width = 10_000, 1500
	var l list
	l.add("embedding.weight", words, width)
	for i := range 2 {
		name := fmt.Sprintf("lstm.%d", i)
		l.add(name+".weight_ih", 4*width, width)
		l.add(name+".weight_hh", 4*width, width)
		l.add(name+".bias", 4*width)
	}
	l.affine("decoder", words, width)
	return Model{"ptb-lstm", "2 x 1500, 10,000 words, embeddings not tied", l, 462}
}

// DeepSpeech is like the network that the DGC paper trains on LibriSpeech: two convolutions over 161 frequencies, then seven bidirectional
// GRU layers of 1200 whose directions are added, and 29 letters. It has 122,169,968 parameters, 488.7 MB; the paper says 488.08.
func DeepSpeech() Model {
	const width, letters = 1200, 29
	var l list
	l.affine("conv.0", 32, 1, 41, 11)
	l.norm("conv.1", 32)
	l.affine("conv.3", 32, 32, 21, 11)
	l.norm("conv.4", 32)
	in := 32 * 41 // two strides of 2 leave 41 of 161 frequencies
	for i := range 7 {
		name := fmt.Sprintf("rnns.%d", i)
		if i > 0 {
			l.norm(name+".batch_norm", in)
		}
		for _, direction := range []string{"", "_reverse"} {
			l.add(name+".weight_ih"+direction, 3*width, in)
			l.add(name+".weight_hh"+direction, 3*width, width)
			l.add(name+".bias_ih"+direction, 3*width)
			l.add(name+".bias_hh"+direction, 3*width)
		}
		in = width
	}
	l.norm("fc.0", width)
	l.add("fc.1.weight", letters, width)
	return Model{"deepspeech", "2 convolutions, 7 bidirectional GRU of 1200", l, 608}
}

// GPT2 is GPT-2 small (Radford et al. 2019): 124,439,808 parameters, input and output embeddings tied. Weights are input x output.
func GPT2() Model {
	const words, positions, width, blocks = 50_257, 1024, 768, 12
	var l list
	conv1d := func(name string, in, out int) {
		l.add(name+".weight", in, out)
		l.add(name+".bias", out)
	}
	l.add("wte.weight", words, width)
	l.add("wpe.weight", positions, width)
	for i := range blocks {
		name := fmt.Sprintf("h.%d", i)
		l.norm(name+".ln_1", width)
		conv1d(name+".attn.c_attn", width, 3*width)
		conv1d(name+".attn.c_proj", width, width)
		l.norm(name+".ln_2", width)
		conv1d(name+".mlp.c_fc", width, 4*width)
		conv1d(name+".mlp.c_proj", 4*width, width)
	}
	l.norm("ln_f", width)
	return Model{"gpt2", "small, embeddings tied", l, 0}
}
