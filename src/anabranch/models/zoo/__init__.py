"""Networks to compile, test and measure: one file each, plain torch modules with reproducible
random weights, in a "paper" and a "tiny" size. They are the ones that published schedulers and
compilers report (IOS, Opara, Nimble, AutoGraph, DeepCuts), so that numbers can be set side by side;
where a well-known implementation exists, parameters have its names and its weights load. Nothing
here knows the compiler, and the compiler knows none of these networks: what it does for them it
must do for any model. To add one: a file with `build(size)` and `inputs(size, batch)`, and a line
in the table.
"""

from anabranch.models.zoo import (
    attention_rnn,
    bert_base,
    deepfm,
    deepspeech2,
    densenet121,
    dlrm,
    googlenet,
    gpt2,
    gru,
    inception_v3,
    lstm,
    mlp,
    mobilenet_v2,
    nasnet_cell,
    nasnet_ios,
    nasnet_large,
    nasnet_mobile,
    randwire,
    randwire_ios,
    resnet50,
    resnext50,
    squeezenet,
    squeezenet_bypass,
    sru,
    t5,
)
from anabranch.models.zoo.network import SIZES, Network

ZOO: dict[str, Network] = {
    "squeezenet": Network("squeezenet", squeezenet.build, squeezenet.inputs),
    "squeezenet_bypass": Network(
        "squeezenet_bypass", squeezenet_bypass.build, squeezenet_bypass.inputs
    ),
    "googlenet": Network("googlenet", googlenet.build, googlenet.inputs),
    "inception_v3": Network("inception_v3", inception_v3.build, inception_v3.inputs),
    "resnet50": Network("resnet50", resnet50.build, resnet50.inputs),
    "resnext50": Network("resnext50", resnext50.build, resnext50.inputs),
    "nasnet_large": Network("nasnet_large", nasnet_large.build, nasnet_large.inputs),
    "nasnet_ios": Network("nasnet_ios", nasnet_ios.build, nasnet_ios.inputs),
    "nasnet_mobile": Network("nasnet_mobile", nasnet_mobile.build, nasnet_mobile.inputs),
    "randwire": Network("randwire", randwire.build, randwire.inputs),
    "randwire_ios": Network("randwire_ios", randwire_ios.build, randwire_ios.inputs),
    "bert_base": Network("bert_base", bert_base.build, bert_base.inputs),
    "sru": Network("sru", sru.build, sru.inputs),
    "deepfm": Network("deepfm", deepfm.build, deepfm.inputs),
    "densenet121": Network("densenet121", densenet121.build, densenet121.inputs),
    "mobilenet_v2": Network("mobilenet_v2", mobilenet_v2.build, mobilenet_v2.inputs),
    "gpt2": Network("gpt2", gpt2.build, gpt2.inputs),
    "lstm": Network("lstm", lstm.build, lstm.inputs),
    "gru": Network("gru", gru.build, gru.inputs),
    "attention_rnn": Network("attention_rnn", attention_rnn.build, attention_rnn.inputs),
    "mlp": Network("mlp", mlp.build, mlp.inputs),
    "dlrm": Network("dlrm", dlrm.build, dlrm.inputs),
    "t5": Network("t5", t5.build, t5.inputs),
    "deepspeech2": Network("deepspeech2", deepspeech2.build, deepspeech2.inputs),
    "nasnet_cell": Network("nasnet_cell", nasnet_cell.build, nasnet_cell.inputs),
}

__all__ = ["SIZES", "ZOO", "Network"]
