"""mrope: multimodal rotary embedding, with time, height and width angles."""
