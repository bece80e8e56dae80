FROM lmsysorg/sglang:v0.5.23
ENV TP=2
CMD python3 -m sglang.launch_server --model-path ibm-granite/granite-4.0-h-small \
    # tensor parallel over both cards
    --tp $TP --page-size 16 \
    --mamba-radix-cache-strategy no_buffer
